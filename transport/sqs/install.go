package sqs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

const (
	// defaultRetention is how long queues keep a message. Delay queues never keep it shorter: there
	// it begins anew with each hop.
	defaultRetention = 4 * 24 * time.Hour
	// deadLetterRetention is SQS's maximum: it counts from when the message was first sent.
	deadLetterRetention = 14 * 24 * time.Hour
	// createdTries is how often Install looks for a created queue: for some 15 s.
	createdTries = 12
)

// installer is the part of a conn that creates and deletes queues and topics.
type installer struct {
	*account
	subscriptions *subscriptions
}

// Install implements [transport.Installer]. It creates the queues of the plan, their delay queues,
// the endpoint's dead-letter queue, and the topics of the types.
func (inst *installer) Install(ctx context.Context, plan transport.Plan) error {
	if err := inst.checkNames(plan.Queues); err != nil {
		return err
	}
	redrive, err := inst.installDeadLetters(ctx, plan.Queues)
	if err != nil {
		return err
	}
	retention := cmp.Or(inst.cfg.Retention, defaultRetention)
	for _, q := range plan.Queues {
		if strings.HasSuffix(q.Name, fifoSuffix) {
			return fmt.Errorf("sqs: queue %q: FIFO queues cannot be received from: leave out %s", q.Name, fifoSuffix)
		}
		own := inst.attributes(retention)
		if redrive != "" && !q.Shared {
			own[string(types.QueueAttributeNameRedrivePolicy)] = redrive
		}
		if err := inst.install(ctx, q.Name, own); err != nil {
			return err
		}
		if plan.Delays && inst.hasDelayQueue(q) {
			hops := inst.attributes(max(retention, defaultRetention))
			hops[string(types.QueueAttributeNameFifoQueue)] = "true" // as NServiceBus requires
			hops[string(types.QueueAttributeNameDelaySeconds)] = inSeconds(maxDelay)
			if err := inst.install(ctx, q.Name+delaySuffix, hops); err != nil {
				return fmt.Errorf("%w (the queue for long delays; Transport.ShortDelays needs none)", err)
			}
		}
	}
	for _, typeName := range slices.Concat(plan.Types...) {
		if _, err := inst.createTopicOf(ctx, typeName); err != nil {
			return err
		}
	}
	return nil
}

// checkNames fails if queues for different purposes have one name at SQS, in which other characters
// than letters, digits, "-" and "_" are "-", or if one is the dead-letter queue of the endpoint.
func (inst *installer) checkNames(queues []transport.Queue) error {
	purposes := make(map[string]transport.Queue)
	for _, q := range queues {
		name := inst.Address(q.Name)
		if inst.hasDeadLetters(queues) && name == inst.Address(inst.endpoint+DeadLettersSuffix) {
			return fmt.Errorf("sqs: queue %q is %q at SQS, the endpoint's dead-letter queue: use another name", q.Name, name)
		}
		other, ok := purposes[name]
		if ok && (other.Shared != q.Shared || other.Counted != q.Counted) {
			return fmt.Errorf("sqs: the queues %q and %q are both %q at SQS: use another name for one of them", other.Name, q.Name, name)
		}
		purposes[name] = q
	}
	return nil
}

// attributes returns the attributes of a new queue.
func (inst *installer) attributes(retention time.Duration) map[string]string {
	a := map[string]string{string(types.QueueAttributeNameMessageRetentionPeriod): inSeconds(retention)}
	if inst.cfg.KMSKey != "" {
		a[string(types.QueueAttributeNameKmsMasterKeyId)] = inst.cfg.KMSKey
	}
	return a
}

func inSeconds(d time.Duration) string { return strconv.Itoa(int(d / time.Second)) }

// installDeadLetters creates the dead-letter queue, and returns the redrive policy of the queues:
// "" for none.
func (inst *installer) installDeadLetters(
	ctx context.Context, queues []transport.Queue,
) (redrive string, err error) {
	if !inst.hasDeadLetters(queues) {
		return "", nil
	}
	name := inst.endpoint + DeadLettersSuffix
	if err := inst.install(ctx, name, inst.attributes(deadLetterRetention)); err != nil {
		return "", err
	}
	arn, err := inst.queueARN(ctx, name)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":"%d"}`, arn, inst.cfg.ReceiveLimit), nil
}

// install creates a queue unless it exists.
func (inst *installer) install(
	ctx context.Context, queue string, attributes map[string]string,
) error {
	_, err := inst.queueURL(ctx, queue)
	if !errors.Is(err, transport.ErrNoQueue) {
		return err
	}
	name, err := queueName(inst.cfg.QueuePrefix, queue)
	if err != nil {
		return err
	}
	out, err := call(ctx, inst.account, inst.queues.CreateQueue, &sqs.CreateQueueInput{QueueName: &name, Attributes: attributes})
	switch {
	case err == nil:
		inst.urls.set(queue, value(out.QueueUrl))
		return inst.awaitQueue(ctx, queue)
	case hasCode(err, existsCodes): // created meanwhile, with other attributes
		_, err := inst.queueURL(ctx, queue)
		return err
	case hasCode(err, deletedCodes):
		return inst.fault(err, "create queue %q: one of that name was deleted less than a minute ago: wait that long", queue)
	}
	return inst.fault(err, "create queue %q", queue)
}

// awaitQueue waits until all of SQS knows a created queue, which may take a second or more.
func (inst *installer) awaitQueue(ctx context.Context, queue string) error {
	pause := backoff.Backoff{Min: 100 * time.Millisecond, Max: 2 * time.Second}
	for try := 1; ; try++ {
		_, err := inst.queueARN(ctx, queue)
		if !errors.Is(err, transport.ErrNoQueue) || try == createdTries {
			return err
		}
		if err := pause.Wait(ctx); err != nil {
			return fmt.Errorf("sqs: wait for queue %q, which was created: %w", queue, err)
		}
	}
}

var _ transport.Remover = (*conn)(nil)

// Remove implements [transport.Remover]. Each queue is deleted with its subscriptions, its queue
// for long delays and its queue for dead letters. Topics are kept. SQS creates no queue of the same
// name within a minute.
func (inst *installer) Remove(ctx context.Context, queues ...string) error {
	if err := inst.removeSubscriptions(ctx, queues); err != nil {
		return err
	}
	for _, queue := range queues {
		for _, name := range []string{queue, queue + delaySuffix, queue + DeadLettersSuffix} {
			if _, err := queueName(inst.cfg.QueuePrefix, name); err != nil && name != queue {
				continue // there cannot be one
			}
			if err := inst.deleteQueue(ctx, name); err != nil {
				return err
			}
		}
	}
	return nil
}

func (inst *installer) deleteQueue(ctx context.Context, queue string) error {
	url, err := inst.queueURL(ctx, queue)
	if err == nil {
		_, err = call(ctx, inst.account, inst.queues.DeleteQueue, &sqs.DeleteQueueInput{QueueUrl: &url})
		err = inst.fault(err, "delete queue %q", queue)
		inst.urls.forget(queue)
	}
	if errors.Is(err, transport.ErrNoQueue) {
		return nil
	}
	return err
}

// removeSubscriptions lists all subscriptions of the account: SNS cannot list those of a queue.
func (inst *installer) removeSubscriptions(ctx context.Context, queues []string) error {
	var arns []string
	for _, queue := range queues {
		arn, err := inst.queueARN(ctx, queue)
		if err != nil && !errors.Is(err, transport.ErrNoQueue) {
			return err
		}
		if err == nil {
			arns = append(arns, arn)
		}
	}
	if len(arns) == 0 {
		return nil
	}
	in := &sns.ListSubscriptionsInput{}
	for {
		out, err := call(ctx, inst.account, inst.topics.ListSubscriptions, in)
		if err != nil {
			return inst.fault(err, "look for the subscriptions of queues")
		}
		for _, s := range out.Subscriptions {
			if !slices.Contains(arns, value(s.Endpoint)) {
				continue
			}
			if err := inst.subscriptions.unsubscribe(ctx, value(s.SubscriptionArn)); err != nil {
				return err
			}
		}
		if in.NextToken = out.NextToken; in.NextToken == nil {
			return nil
		}
	}
}

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

// Install implements [transport.Installer]. It creates the queues of the plan, their delay queues,
// the endpoint's dead-letter queue, and the topics of the types.
func (c *conn) Install(ctx context.Context, plan transport.Plan) error {
	if err := c.checkNames(plan.Queues); err != nil {
		return err
	}
	redrive, err := c.installDeadLetters(ctx, plan.Queues)
	if err != nil {
		return err
	}
	retention := cmp.Or(c.cfg.Retention, defaultRetention)
	for _, q := range plan.Queues {
		if strings.HasSuffix(q.Name, fifoSuffix) {
			return fmt.Errorf("sqs: queue %q: FIFO queues cannot be received from: leave out %s", q.Name, fifoSuffix)
		}
		own := c.attributes(retention)
		if redrive != "" && !q.Shared {
			own[string(types.QueueAttributeNameRedrivePolicy)] = redrive
		}
		if err := c.install(ctx, q.Name, own); err != nil {
			return err
		}
		if plan.Delays && c.hasDelayQueue(q) {
			hops := c.attributes(max(retention, defaultRetention))
			hops[string(types.QueueAttributeNameFifoQueue)] = "true" // as NServiceBus requires
			hops[string(types.QueueAttributeNameDelaySeconds)] = inSeconds(maxDelay)
			if err := c.install(ctx, q.Name+delaySuffix, hops); err != nil {
				return fmt.Errorf("%w (the queue for long delays; Transport.ShortDelays needs none)", err)
			}
		}
	}
	for _, typeName := range slices.Concat(plan.Types...) {
		if _, err := c.createTopicOf(ctx, typeName); err != nil {
			return err
		}
	}
	return nil
}

// checkNames fails if queues for different purposes have one name at SQS, in which other characters
// than letters, digits, "-" and "_" are "-", or if one is the dead-letter queue of the endpoint.
func (c *conn) checkNames(queues []transport.Queue) error {
	purposes := make(map[string]transport.Queue)
	for _, q := range queues {
		name := c.Address(q.Name)
		if c.hasDeadLetters(queues) && name == c.Address(c.endpoint+DeadLettersSuffix) {
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

// hasDelayQueue reports whether a queue has a delay queue. Shared queues have no additions, and a
// suspect message is not delayed.
func (c *conn) hasDelayQueue(q transport.Queue) bool {
	return !c.cfg.ShortDelays && !q.Shared && !q.Counted
}

// attributes returns the attributes of a new queue.
func (c *conn) attributes(retention time.Duration) map[string]string {
	a := map[string]string{string(types.QueueAttributeNameMessageRetentionPeriod): inSeconds(retention)}
	if c.cfg.KMSKey != "" {
		a[string(types.QueueAttributeNameKmsMasterKeyId)] = c.cfg.KMSKey
	}
	return a
}

func inSeconds(d time.Duration) string { return strconv.Itoa(int(d / time.Second)) }

// installDeadLetters creates the dead-letter queue, and returns the redrive policy of the queues:
// "" for none.
func (c *conn) installDeadLetters(ctx context.Context, queues []transport.Queue) (redrive string, err error) {
	if !c.hasDeadLetters(queues) {
		return "", nil
	}
	name := c.endpoint + DeadLettersSuffix
	if err := c.install(ctx, name, c.attributes(deadLetterRetention)); err != nil {
		return "", err
	}
	arn, err := c.queueARN(ctx, name)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":"%d"}`, arn, c.cfg.ReceiveLimit), nil
}

// hasDeadLetters reports whether some of the queues need a dead-letter queue. Without an endpoint
// none receives from it.
func (c *conn) hasDeadLetters(queues []transport.Queue) bool {
	return c.endpoint != "" && c.cfg.ReceiveLimit > 0 &&
		slices.ContainsFunc(queues, func(q transport.Queue) bool { return !q.Shared })
}

// install creates a queue unless it exists.
func (c *conn) install(ctx context.Context, queue string, attributes map[string]string) error {
	_, err := c.queueURL(ctx, queue)
	if !errors.Is(err, transport.ErrNoQueue) {
		return err
	}
	name, err := queueName(c.cfg.QueuePrefix, queue)
	if err != nil {
		return err
	}
	out, err := call(ctx, c, c.queues.CreateQueue, &sqs.CreateQueueInput{QueueName: &name, Attributes: attributes})
	switch {
	case err == nil:
		c.urls.set(queue, value(out.QueueUrl))
		return c.awaitQueue(ctx, queue)
	case hasCode(err, existsCodes): // created meanwhile, with other attributes
		_, err := c.queueURL(ctx, queue)
		return err
	case hasCode(err, deletedCodes):
		return c.fault(err, "create queue %q: one of that name was deleted less than a minute ago: wait that long", queue)
	}
	return c.fault(err, "create queue %q", queue)
}

// awaitQueue waits until all of SQS knows a created queue, which may take a second or more.
func (c *conn) awaitQueue(ctx context.Context, queue string) error {
	pause := backoff.Backoff{Min: 100 * time.Millisecond, Max: 2 * time.Second}
	for try := 1; ; try++ {
		_, err := c.queueARN(ctx, queue)
		if !errors.Is(err, transport.ErrNoQueue) || try == createdTries {
			return err
		}
		if err := pause.Wait(ctx); err != nil {
			return fmt.Errorf("sqs: wait for queue %q, which was created: %w", queue, err)
		}
	}
}

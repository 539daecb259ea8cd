package sqs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/holdfast-go/holdfast/transport"
)

var (
	_ transport.Verifier             = (*conn)(nil)
	_ transport.SubscriptionVerifier = (*conn)(nil)
)

// fewReceives is a maxReceiveCount that an endpoint's own retries may reach.
const fewReceives = 25

// Verify implements [transport.Verifier]. Retention and encryption may be chosen per queue and are
// not compared.
func (c *conn) Verify(ctx context.Context, plan transport.Plan) ([]transport.Finding, error) {
	var v verification
	if c.hasDeadLetters(plan.Queues) {
		v.compare("queue", c.endpoint+DeadLettersSuffix, c.exists(ctx, c.endpoint+DeadLettersSuffix))
	}
	for _, q := range plan.Queues {
		v.compare("queue", q.Name, c.compareQueue(ctx, q))
		if plan.Delays && c.hasDelayQueue(q) {
			v.compare("queue", q.Name+delaySuffix, c.compareDelayQueue(ctx, q.Name+delaySuffix))
		}
	}
	for _, name := range slices.Concat(plan.Types...) {
		v.compare("topic", name, c.compareTopic(ctx, name))
	}
	return v.found, v.err
}

// VerifySubscriptions implements [transport.SubscriptionVerifier].
func (c *conn) VerifySubscriptions(ctx context.Context, queue string, typeNames []string) ([]transport.Finding, error) {
	queueARN, err := c.queueARN(ctx, queue)
	if err != nil && !errors.Is(err, transport.ErrNoQueue) {
		return nil, err
	}
	var v verification
	for _, name := range typeNames {
		if queueARN == "" {
			v.compare("subscription", name, transport.ErrNoQueue)
		} else {
			v.compare("subscription", name, c.compareSubscription(ctx, queue, queueARN, name))
		}
	}
	return v.found, v.err
}

// verification collects findings up to the first error that is none.
type verification struct {
	found []transport.Finding
	err   error
}

// different is the error of a part that exists and differs.
type different string

func (d different) Error() string { return string(d) }

// compare adds a finding for the outcome of a comparison.
func (v *verification) compare(kind, name string, err error) {
	f := transport.Finding{Kind: kind, Name: name}
	d, differs := errors.AsType[different](err)
	switch {
	case err == nil || v.err != nil:
		return
	case errors.Is(err, transport.ErrNoQueue):
		f.State = transport.Missing
	case differs:
		f.State, f.Detail = transport.Differs, string(d)
	case isDenied(err):
		f.State, f.Detail = transport.Unknown, err.Error()
	default:
		v.err = err
		return
	}
	v.found = append(v.found, f)
}

func (c *conn) exists(ctx context.Context, queue string) error {
	c.urls.forget(queue) // it may have been deleted
	_, err := c.queueURL(ctx, queue)
	return err
}

// compareQueue compares the dead-letter queue of an endpoint's own queue.
func (c *conn) compareQueue(ctx context.Context, q transport.Queue) error {
	if err := c.exists(ctx, q.Name); err != nil || !q.Shared && !c.hasDeadLetters([]transport.Queue{q}) {
		return err
	}
	redrive, err := c.redrive(ctx, q.Name)
	switch {
	case err != nil:
		return err
	case q.Shared && redrive.most > 0 && redrive.most < fewReceives:
		return different(fmt.Sprintf("it moves messages to queue %q after %d deliveries, and each listing of it counts as one: remove its redrive policy",
			nameOf(redrive.target), redrive.most))
	case q.Shared:
		return nil
	case redrive.most == 0:
		return different(fmt.Sprintf("it has no dead-letter queue: set its redrive policy to %q and maxReceiveCount %d, or "+
			"set Transport.ReceiveLimit to None", c.endpoint+DeadLettersSuffix, c.cfg.ReceiveLimit))
	case !c.isCalled(c.endpoint+DeadLettersSuffix, nameOf(redrive.target)):
		return different(fmt.Sprintf("its dead-letter queue is %q, which the endpoint does not receive from", nameOf(redrive.target)))
	case redrive.most < fewReceives:
		return different(fmt.Sprintf("it moves messages to the dead-letter queue after %d deliveries: set %d", redrive.most, c.cfg.ReceiveLimit))
	}
	return nil
}

// redrive is the redrive policy of a queue. The zero value is none.
type redrive struct {
	target string // ARN
	most   int64  // maxReceiveCount: how often a message is received before SQS moves it
}

func (c *conn) redrive(ctx context.Context, queue string) (redrive, error) {
	text, err := c.queueAttribute(ctx, queue, types.QueueAttributeNameRedrivePolicy)
	if err != nil || text == "" {
		return redrive{}, err
	}
	var read struct {
		Target string      `json:"deadLetterTargetArn"`
		Most   json.Number `json:"maxReceiveCount"` // a number or a text
	}
	if err := json.Unmarshal([]byte(text), &read); err != nil {
		return redrive{}, different("its redrive policy is not readable")
	}
	most, err := read.Most.Int64()
	if err != nil || most < 1 {
		return redrive{}, different("its redrive policy is not readable")
	}
	return redrive{read.Target, most}, nil
}

func (c *conn) compareDelayQueue(ctx context.Context, queue string) error {
	if err := c.exists(ctx, queue); err != nil {
		return err
	}
	got, err := c.queueAttribute(ctx, queue, types.QueueAttributeNameDelaySeconds)
	if err != nil {
		return err
	}
	if want := inSeconds(maxDelay); got != want {
		return different(fmt.Sprintf("it delays messages by %s s: set DelaySeconds to %s", got, want))
	}
	return nil
}

// compareTopic fails with ErrNoQueue for a topic that does not exist.
func (c *conn) compareTopic(ctx context.Context, typeName string) error {
	arn, err := c.topicARN(ctx, typeName)
	if err != nil {
		return err
	}
	if _, err = c.topicAttribute(ctx, arn, ""); hasCode(err, noTopicCodes) {
		return transport.ErrNoQueue
	}
	return err
}

// compareSubscription looks for the subscription, and for the topic in the queue's policy.
func (c *conn) compareSubscription(ctx context.Context, queue, queueARN, typeName string) error {
	topicARN, err := c.topicARN(ctx, typeName)
	if err != nil {
		return err
	}
	arn, err := c.subscription(ctx, queueARN, topicARN)
	if err != nil {
		return err
	}
	if arn == "" {
		return transport.ErrNoQueue
	}
	p, err := c.policy(ctx, queue)
	if err != nil {
		return err
	}
	if !p.allows(queueARN, topicARN) {
		return different("the policy of the queue does not let the topic send to it")
	}
	return nil
}

package sqs

import (
	"context"
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

// verifier is the part of a conn that compares queues and subscriptions with those of a plan.
type verifier struct {
	*account
	subscriptions *subscriptions
}

// Verify implements [transport.Verifier]. Retention and encryption may be chosen per queue and are
// not compared.
func (ve *verifier) Verify(ctx context.Context, plan transport.Plan) ([]transport.Finding, error) {
	var v verification
	if ve.hasDeadLetters(plan.Queues) {
		v.compare("queue", ve.endpoint+DeadLettersSuffix, ve.exists(ctx, ve.endpoint+DeadLettersSuffix))
	}
	for _, q := range plan.Queues {
		v.compare("queue", q.Name, ve.compareQueue(ctx, q))
		if plan.Delays && ve.hasDelayQueue(q) {
			v.compare("queue", q.Name+delaySuffix, ve.compareDelayQueue(ctx, q.Name+delaySuffix))
		}
	}
	for _, name := range slices.Concat(plan.Types...) {
		v.compare("topic", name, ve.compareTopic(ctx, name))
	}
	return v.found, v.err
}

// VerifySubscriptions implements [transport.SubscriptionVerifier].
func (ve *verifier) VerifySubscriptions(
	ctx context.Context, queue string, typeNames []string,
) ([]transport.Finding, error) {
	queueARN, err := ve.queueARN(ctx, queue)
	if err != nil && !errors.Is(err, transport.ErrNoQueue) {
		return nil, err
	}
	var v verification
	for _, name := range typeNames {
		if queueARN == "" {
			v.compare("subscription", name, transport.ErrNoQueue)
		} else {
			v.compare("subscription", name, ve.compareSubscription(ctx, queue, queueARN, name))
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

func (ve *verifier) exists(ctx context.Context, queue string) error {
	ve.urls.forget(queue) // it may have been deleted
	_, err := ve.queueURL(ctx, queue)
	return err
}

// compareQueue compares the dead-letter queue of an endpoint's own queue.
func (ve *verifier) compareQueue(ctx context.Context, q transport.Queue) error {
	if err := ve.exists(ctx, q.Name); err != nil || !q.Shared && !ve.hasDeadLetters([]transport.Queue{q}) {
		return err
	}
	redrive, err := ve.redrive(ctx, q.Name)
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
			"set Transport.ReceiveLimit to None", ve.endpoint+DeadLettersSuffix, ve.cfg.ReceiveLimit))
	case !ve.isCalled(ve.endpoint+DeadLettersSuffix, nameOf(redrive.target)):
		return different(fmt.Sprintf("its dead-letter queue is %q, which the endpoint does not receive from", nameOf(redrive.target)))
	case redrive.most < fewReceives:
		return different(fmt.Sprintf("it moves messages to the dead-letter queue after %d deliveries: set %d", redrive.most, ve.cfg.ReceiveLimit))
	}
	return nil
}

func (ve *verifier) compareDelayQueue(ctx context.Context, queue string) error {
	if err := ve.exists(ctx, queue); err != nil {
		return err
	}
	got, err := ve.queueAttribute(ctx, queue, types.QueueAttributeNameDelaySeconds)
	if err != nil {
		return err
	}
	if want := inSeconds(maxDelay); got != want {
		return different(fmt.Sprintf("it delays messages by %s s: set DelaySeconds to %s", got, want))
	}
	return nil
}

// compareTopic fails with ErrNoQueue for a topic that does not exist.
func (ve *verifier) compareTopic(ctx context.Context, typeName string) error {
	arn, err := ve.topicARN(ctx, typeName)
	if err != nil {
		return err
	}
	if _, err = ve.topicAttribute(ctx, arn, ""); hasCode(err, noTopicCodes) {
		return transport.ErrNoQueue
	}
	return err
}

// compareSubscription looks for the subscription, and for the topic in the queue's policy.
func (ve *verifier) compareSubscription(
	ctx context.Context, queue, queueARN, typeName string,
) error {
	topicARN, err := ve.topicARN(ctx, typeName)
	if err != nil {
		return err
	}
	arn, err := ve.subscriptions.subscription(ctx, queueARN, topicARN)
	if err != nil {
		return err
	}
	if arn == "" {
		return transport.ErrNoQueue
	}
	p, err := ve.subscriptions.policy(ctx, queue)
	if err != nil {
		return err
	}
	if !p.allows(queueARN, topicARN) {
		return different("the policy of the queue does not let the topic send to it")
	}
	return nil
}

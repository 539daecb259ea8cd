package sqs

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/holdfast-go/holdfast/internal/backoff"
)

const (
	// rawDelivery is the attribute of a subscription that delivers messages without SNS's own
	// envelope.
	rawDelivery = "RawMessageDelivery"
	// policyTries is how often a policy is written and read back. AWS may take a minute to show a
	// change, and another writer may have overwritten it.
	policyTries = 20
	// policySettles is how long after its writing a policy is read once more: another writer may
	// have read it before the change and written it afterwards.
	policySettles = 200 * time.Millisecond
)

// subscriptions is the part of a conn with the subscriptions of queues, and the policies that let
// topics send to queues.
type subscriptions struct {
	*account
	made sync.Map // typeOfQueue: by this connection
}

// Subscribe implements [transport.Subscriber]. It creates missing topics if the credentials have
// the right to.
func (su *subscriptions) Subscribe(ctx context.Context, queue string, typeNames []string) error {
	queueARN, err := su.queueARN(ctx, queue)
	if err != nil {
		return err
	}
	topics := make([]string, 0, len(typeNames))
	for _, typeName := range typeNames {
		arn, err := su.createTopicOf(ctx, typeName)
		if isDenied(err) { // then it must exist
			arn, err = su.topicARN(ctx, typeName)
		}
		if err != nil {
			return err
		}
		topics = append(topics, arn)
	}
	if err := su.letIn(ctx, queue, queueARN, topics); err != nil {
		return err
	}
	for _, arn := range topics {
		if err := su.subscribeTo(ctx, queueARN, arn); err != nil {
			return err
		}
	}
	su.noteSubscribed(queue, typeNames)
	return nil
}

// subscribeTo subscribes a queue to a topic, unless it is subscribed.
func (su *subscriptions) subscribeTo(ctx context.Context, queueARN, topicARN string) error {
	_, err := call(ctx, su.account, su.topics.Subscribe, &sns.SubscribeInput{
		TopicArn: &topicARN, Protocol: aws.String("sqs"), Endpoint: &queueARN, ReturnSubscriptionArn: true,
		Attributes: map[string]string{rawDelivery: "true"},
	})
	switch {
	case err == nil:
		return nil
	case strings.Contains(err.Error(), "already exists with different attributes"):
		return su.makeRaw(ctx, queueARN, topicARN)
	case hasCode(err, noTopicCodes):
		return su.fault(err, "subscribe %q to topic %q, which does not exist: create it with credentials that have the "+
			"right to", nameOf(queueARN), nameOf(topicARN))
	}
	return su.fault(err, "subscribe %q to topic %q", nameOf(queueARN), nameOf(topicARN))
}

// makeRaw sets raw delivery on a subscription that others have created. It keeps its other
// attributes, such as a filter.
func (su *subscriptions) makeRaw(ctx context.Context, queueARN, topicARN string) error {
	arn, err := su.subscription(ctx, queueARN, topicARN)
	if err != nil || arn == "" {
		return err
	}
	_, err = call(ctx, su.account, su.topics.SetSubscriptionAttributes, &sns.SetSubscriptionAttributesInput{
		SubscriptionArn: &arn, AttributeName: aws.String(rawDelivery), AttributeValue: aws.String("true"),
	})
	return su.fault(err, "set raw delivery from topic %q to %q", nameOf(topicARN), nameOf(queueARN))
}

// Unsubscribe implements [transport.Subscriber]. It does not change the queue's policy.
func (su *subscriptions) Unsubscribe(ctx context.Context, queue string, typeNames []string) error {
	queueARN, err := su.queueARN(ctx, queue)
	if err != nil {
		return err
	}
	for _, typeName := range typeNames {
		topicARN, err := su.topicARN(ctx, typeName)
		if err != nil {
			return err
		}
		arn, err := su.subscription(ctx, queueARN, topicARN)
		if err == nil && arn != "" {
			err = su.unsubscribe(ctx, arn)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (su *subscriptions) unsubscribe(ctx context.Context, arn string) error {
	_, err := call(ctx, su.account, su.topics.Unsubscribe, &sns.UnsubscribeInput{SubscriptionArn: &arn})
	if hasCode(err, noTopicCodes) {
		return nil
	}
	return su.fault(err, "unsubscribe %q", arn)
}

// subscription returns the ARN of a queue's subscription to a topic; "" if there is none.
func (su *subscriptions) subscription(
	ctx context.Context, queueARN, topicARN string,
) (string, error) {
	in := &sns.ListSubscriptionsByTopicInput{TopicArn: &topicARN}
	for {
		out, err := call(ctx, su.account, su.topics.ListSubscriptionsByTopic, in)
		if hasCode(err, noTopicCodes) {
			return "", nil
		}
		if err != nil {
			return "", su.fault(err, "look for the subscriptions to topic %q", nameOf(topicARN))
		}
		for _, s := range out.Subscriptions {
			if value(s.Endpoint) == queueARN {
				return value(s.SubscriptionArn), nil
			}
		}
		if in.NextToken = out.NextToken; in.NextToken == nil {
			return "", nil
		}
	}
}

// letIn lets the topics send to the queue. A policy can be written as a whole only, so it is read
// back until it has the change twice, in case other writers change it at the same time.
func (su *subscriptions) letIn(ctx context.Context, queue, queueARN string, topics []string) error {
	if su.cfg.WidePolicy && len(topics) > 0 {
		prefix, err := sanitize(su.cfg.TopicPrefix)
		if err != nil {
			return fmt.Errorf("sqs: TopicPrefix: %w", err)
		}
		all, err := su.topicARNs(ctx)
		if err != nil {
			return err
		}
		topics = []string{all + prefix + "*"}
	}
	pause := backoff.Backoff{Min: policySettles, Max: 10 * time.Second}
	written := false
	for range policyTries {
		p, err := su.policy(ctx, queue)
		if err != nil {
			return err
		}
		allowed := func(arn string) bool { return p.allows(queueARN, arn) }
		missing := slices.DeleteFunc(slices.Clone(topics), allowed)
		switch {
		case len(missing) == 0 && !written:
			return nil
		case len(missing) == 0:
			written = false // read it once more, after the pause
		default:
			if err := su.writePolicy(ctx, queue, queueARN, p, missing); err != nil {
				return err
			}
			written = true
		}
		if err := pause.Wait(ctx); err != nil {
			return fmt.Errorf("sqs: wait for the policy of queue %q: %w", queue, err)
		}
	}
	return fmt.Errorf("sqs: the policy of queue %q does not let in its topics, although it was written several times: "+
		"another program changes it, or AWS is slow: try again, or see \"holdfast sqs policy show\"", queue)
}

func (su *subscriptions) policy(ctx context.Context, queue string) (*policy, error) {
	text, err := su.Policy(ctx, queue)
	if err != nil {
		return nil, err
	}
	p, err := parsePolicy(text)
	if err != nil {
		return nil, fmt.Errorf("sqs: policy of queue %q: %w", queue, err)
	}
	return p, nil
}

func (su *subscriptions) writePolicy(
	ctx context.Context, queue, queueARN string, p *policy, topics []string,
) error {
	err := p.allow(queueARN, topics...)
	var text string
	if err == nil {
		text, err = p.text()
	}
	if err != nil {
		return fmt.Errorf("sqs: policy of queue %q: %w", queue, err)
	}
	url, err := su.queueURL(ctx, queue)
	if err != nil {
		return err
	}
	_, err = call(ctx, su.account, su.queues.SetQueueAttributes, &sqs.SetQueueAttributesInput{
		QueueUrl: &url, Attributes: map[string]string{string(types.QueueAttributeNamePolicy): text},
	})
	err = su.fault(err, "change queue %q", queue)
	if isDenied(err) {
		return fmt.Errorf("%w: let in %s with credentials that have the right to, as with \"holdfast sqs policy set\"",
			err, strings.Join(topics, ", "))
	}
	return err
}

// EventTopics selects the topics to which an event with base types is published, and those to which
// its subscribers subscribe. SNS has no hierarchy of topics.
type EventTopics string

const (
	// AllTopics publishes an event to the topic of its type and to those of its base types. A
	// handler of a base type needs a subscription to the topic of that type alone. It is the
	// default.
	AllTopics EventTopics = "all"
	// BothTopics publishes as AllTopics does, and subscribes as ConcreteTopic does. An endpoint has
	// it while publishers change from AllTopics to ConcreteTopic.
	BothTopics EventTopics = "both"
	// ConcreteTopic publishes an event to the topic of its type alone, as NServiceBus does. A
	// handler of a base type needs subscriptions to the topic of that type and to those of all
	// types that derive from it. The endpoint subscribes to the events that are registered in its
	// configuration, except those that are registered WithoutSubscription. It does not get other
	// events.
	ConcreteTopic EventTopics = "concrete"
)

func (e EventTopics) check() error {
	switch e {
	case "", AllTopics, BothTopics, ConcreteTopic:
		return nil
	}
	return fmt.Errorf("sqs: EventTopics %q: use %q, %q or %q", e, AllTopics, BothTopics, ConcreteTopic)
}

// ofPublish returns the types of a published message, the most concrete first, to whose topics it
// is published.
func (e EventTopics) ofPublish(typeNames []string) []string {
	if e == ConcreteTopic {
		return typeNames[:1]
	}
	return typeNames
}

// typeOfQueue is a type to which a queue is subscribed.
type typeOfQueue struct{ queue, name string }

// noteSubscribed records the types to which this connection has subscribed a queue.
func (su *subscriptions) noteSubscribed(queue string, typeNames []string) {
	queue = su.ShortName(queue)
	for _, name := range typeNames {
		su.made.Store(typeOfQueue{queue, name}, struct{}{})
	}
}

// isSubscribed reports whether this connection has subscribed a queue to a type.
func (su *subscriptions) isSubscribed(queue, name string) bool {
	_, ok := su.made.Load(typeOfQueue{su.ShortName(queue), name})
	return ok
}

// Admin is implemented by the connection of a [Transport], for tools that manage the policies of
// queues: find it by type assertion. It is safe for concurrent use.
type Admin interface {
	// Policy returns the queue's policy, as JSON; "" when it has none. It fails with
	// [transport.ErrNoQueue].
	Policy(ctx context.Context, queue string) (string, error)
	// LetIn lets the topics of message types send to the queue, as Subscribe does, by a statement
	// of the queue's policy. It changes no other statement.
	LetIn(ctx context.Context, queue string, types []string) error
}

var _ Admin = (*conn)(nil)

// Policy is described at [Admin].
func (su *subscriptions) Policy(ctx context.Context, queue string) (string, error) {
	return su.queueAttribute(ctx, queue, types.QueueAttributeNamePolicy)
}

// LetIn is described at [Admin].
func (su *subscriptions) LetIn(ctx context.Context, queue string, typeNames []string) error {
	queueARN, err := su.queueARN(ctx, queue)
	if err != nil {
		return err
	}
	topics := make([]string, len(typeNames))
	for i, typeName := range typeNames {
		if topics[i], err = su.topicARN(ctx, typeName); err != nil {
			return err
		}
	}
	return su.letIn(ctx, queue, queueARN, topics)
}

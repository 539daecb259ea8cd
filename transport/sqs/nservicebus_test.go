package sqs_test

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	snstypes "github.com/aws/aws-sdk-go-v2/service/sns/types"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// recording is a message of a real endpoint of NServiceBus.
type recording struct {
	What, Form, Queue, Body string
	MessageAttributes       map[string]struct{ StringValue string }
}

// recorded returns the recording of a message in a form, whose text begins with "wrapped" or
// "DoNotWrap".
func recorded(t *testing.T, what, form string) recording {
	t.Helper()
	text, err := os.ReadFile("../../testdata/nservicebus/sqs.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []recording
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		if r.What == what && strings.HasPrefix(r.Form, form) {
			return r
		}
	}
	t.Fatalf("there is no recording of %q in form %q", what, form)
	return recording{}
}

func (r *recording) attributes() map[string]string {
	all := map[string]string{}
	for name, a := range r.MessageAttributes {
		all[name] = a.StringValue
	}
	return all
}

// netEndpoint does at SQS and SNS what an endpoint of NServiceBus does: Transport.SQS, version 9.
type netEndpoint struct {
	*testing.T

	queues *awssqs.Client
	topics *sns.Client
	prefix string // of topics
	name   string // of the queue, with its prefix
}

func newNet(t *testing.T, broker, prefix, name string) *netEndpoint {
	cfg := testConfig()
	cfg.BaseEndpoint = &broker
	cfg.HTTPClient = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	return &netEndpoint{t, awssqs.NewFromConfig(*cfg), sns.NewFromConfig(*cfg), prefix, name}
}

func (n *netEndpoint) must(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

// install creates its queues as its installers do, also where they exist: without attributes first.
// Then the receiver checks the queue for long delays, as it does at its start.
func (n *netEndpoint) install() {
	n.Helper()
	const days = "345600" // 4
	create := func(name string, attributes map[string]string) {
		made, err := n.queues.CreateQueue(n.Context(), &awssqs.CreateQueueInput{QueueName: &name, Attributes: attributes})
		n.must(err)
		_, err = n.queues.SetQueueAttributes(n.Context(), &awssqs.SetQueueAttributesInput{
			QueueUrl: made.QueueUrl, Attributes: map[string]string{"MessageRetentionPeriod": days},
		})
		n.must(err)
	}
	create(n.name, nil)
	create(n.name+"-delay.fifo", map[string]string{"FifoQueue": "true", "DelaySeconds": "900"})
	got, err := n.queues.GetQueueAttributes(n.Context(), &awssqs.GetQueueAttributesInput{
		QueueUrl: n.url(n.name + "-delay.fifo"), AttributeNames: []types.QueueAttributeName{"All"},
	})
	n.must(err)
	if a := got.Attributes; a["DelaySeconds"] != "900" || a["MessageRetentionPeriod"] != days || a["RedrivePolicy"] != "" {
		n.Errorf("NServiceBus refuses to start on the queue for long delays: %v", a)
	}
}

func (n *netEndpoint) url(name string) *string {
	n.Helper()
	found, err := n.queues.GetQueueUrl(n.Context(), &awssqs.GetQueueUrlInput{QueueName: &name})
	n.must(err)
	return found.QueueUrl
}

func (n *netEndpoint) topic(typeName string) *string {
	n.Helper()
	made, err := n.topics.CreateTopic(n.Context(), &sns.CreateTopicInput{Name: aws.String(n.prefix + sanitised(typeName))})
	n.must(err)
	return made.TopicArn
}

// subscribe subscribes its queue to the topics of types, and permits them in the queue's policy.
func (n *netEndpoint) subscribe(typeNames ...string) {
	n.Helper()
	queue := n.url(n.name)
	got, err := n.queues.GetQueueAttributes(n.Context(), &awssqs.GetQueueAttributesInput{
		QueueUrl: queue, AttributeNames: []types.QueueAttributeName{"All"},
	})
	n.must(err)
	arn := got.Attributes["QueueArn"]
	var arns []string
	for _, name := range typeNames {
		arns = append(arns, *n.topic(name))
	}
	policy, err := json.Marshal(map[string]any{"Version": "2012-10-17", "Statement": []any{map[string]any{
		"Sid": "1", "Effect": "Allow", "Principal": map[string]string{"AWS": "*"}, "Action": []string{"sqs:SendMessage"},
		"Resource": []string{arn}, "Condition": map[string]any{"ArnLike": map[string]any{"aws:SourceArn": arns}},
	}}})
	n.must(err)
	_, err = n.queues.SetQueueAttributes(n.Context(), &awssqs.SetQueueAttributesInput{
		QueueUrl: queue, Attributes: map[string]string{"Policy": string(policy)},
	})
	n.must(err)
	for i := range arns {
		_, err = n.topics.Subscribe(n.Context(), &sns.SubscribeInput{
			TopicArn: &arns[i], Protocol: aws.String("sqs"), Endpoint: &arn, ReturnSubscriptionArn: true,
			Attributes: map[string]string{"RawMessageDelivery": "true"},
		})
		n.must(err)
	}
}

// publish publishes a recorded event to the topic of its type.
func (n *netEndpoint) publish(typeName string, r recording) {
	n.Helper()
	in := &sns.PublishInput{
		TopicArn: n.topic(typeName), Message: &r.Body, MessageAttributes: map[string]snstypes.MessageAttributeValue{},
	}
	for name, value := range r.attributes() {
		in.MessageAttributes[name] = snstypes.MessageAttributeValue{DataType: aws.String("String"), StringValue: &value}
	}
	_, err := n.topics.Publish(n.Context(), in)
	n.must(err)
}

// netMessage is a message as NServiceBus reads it.
type netMessage struct {
	Headers map[string]string
	Body    string // in Base64 or, if it is none, as text
}

// body returns the bytes of the body, which is text unless it is Base64.
func (m *netMessage) body() string {
	if m.Body == "empty message" {
		return ""
	}
	if b, err := base64.StdEncoding.DecodeString(m.Body); err == nil {
		return string(b)
	}
	return m.Body
}

// receive receives and deletes the messages of its queue until none is left.
func (n *netEndpoint) receive() (ms []netMessage) {
	n.Helper()
	for {
		some := n.receiveOnce()
		if len(some) == 0 {
			return ms
		}
		ms = append(ms, some...)
	}
}

// receiveOnce receives and deletes up to ten messages of its queue.
func (n *netEndpoint) receiveOnce() (ms []netMessage) {
	n.Helper()
	out, err := n.queues.ReceiveMessage(n.Context(), &awssqs.ReceiveMessageInput{
		QueueUrl: n.url(n.name), MaxNumberOfMessages: 10, WaitTimeSeconds: 1, MessageAttributeNames: []string{"All"},
	})
	n.must(err)
	for _, m := range out.Messages {
		ms = append(ms, n.read(m))
		_, err := n.queues.DeleteMessage(n.Context(), &awssqs.DeleteMessageInput{
			QueueUrl: n.url(n.name), ReceiptHandle: m.ReceiptHandle,
		})
		n.must(err)
	}
	return ms
}

// read reads a message by the rules of NServiceBus: the headers are in an attribute or, with the
// body, in an envelope.
func (n *netEndpoint) read(m types.Message) (r netMessage) {
	n.Helper()
	if head, ok := m.MessageAttributes["NServiceBus.AmazonSQS.Headers"]; ok {
		n.must(json.Unmarshal([]byte(*head.StringValue), &r.Headers))
		r.Body = *m.Body
	} else {
		n.must(json.Unmarshal([]byte(*m.Body), &r))
	}
	if r.Headers["NServiceBus.MessageId"] == "" {
		n.Errorf("NServiceBus takes a message without an id in the headers for one of another system: %s", *m.Body)
	}
	return r
}

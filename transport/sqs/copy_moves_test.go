package sqs_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// A message with text attributes of more than 64 KiB is handled and audited, and moves to the error
// queue if it fails, also where SQS has no room for more headers. The dead-letter queue gets none.
func TestLargeTextAttributesMove(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	front := brokertest.NewSQSFront(t, s.broker)
	for name, test := range map[string]struct {
		size   int // of the attributes
		most   int // of a message
		fails  bool
		queue  string
		packed bool
	}{
		"audited": {size: 100_000, queue: "audit"},
		"failed":  {size: 100_000, fails: true, queue: "error"},
		"full":    {size: 261_900, most: 262_144, fails: true, queue: "error", packed: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := &system{t, front.URL, brokertest.Name(t, "")}
			tr := at(front.URL, true)
			tr.QueuePrefix, tr.TopicPrefix, tr.ShortDelays, tr.MaxMessage = s.prefix, s.prefix, true, test.most
			handled := make(chan struct{}, 100)
			_, stop := s.run(endpoint.Config{
				Name: "in", Transport: tr, AuditQueue: "audit", Messages: []endpoint.Message{endpoint.Command[ping]("Ping")},
				Recoverability: recoverability.Config{Immediate: recoverability.None, Delayed: recoverability.None},
				Handlers: []endpoint.Handler{endpoint.Handle(func(context.Context, *endpoint.Session, ping) error {
					handled <- struct{}{}
					if test.fails {
						return errors.New("no")
					}
					return nil
				})},
			})
			attributes := map[string]types.MessageAttributeValue{
				header.EnclosedMessageTypes: {DataType: aws.String("String"), StringValue: aws.String("Ping")},
			}
			for _, name := range []string{"A", "B"} {
				attributes[name] = types.MessageAttributeValue{DataType: aws.String("String"), StringValue: aws.String(strings.Repeat(name, test.size/2))}
			}
			c := client(front.URL)
			url, err := c.GetQueueUrl(t.Context(), &awssqs.GetQueueUrlInput{QueueName: aws.String(s.prefix + "in")})
			if err != nil {
				t.Fatal(err)
			}
			_, err = c.SendMessage(t.Context(), &awssqs.SendMessageInput{QueueUrl: url.QueueUrl, MessageBody: aws.String(`{"N":1}`), MessageAttributes: attributes})
			if err != nil {
				t.Fatal(err)
			}
			got := received(t, tr, test.queue)
			stop()
			whole := copies.Unpacked(got)
			if a, b := whole.Headers.Get("A"), whole.Headers.Get("B"); len(a) != test.size/2 || len(b) != test.size/2 || string(whole.Body) != `{"N":1}` {
				t.Errorf("%d and %d bytes arrived, body %s", len(a), len(b), whole.Body)
			}
			if packed := whole != got; packed != test.packed || len(handled) != 1 {
				t.Errorf("packed %v, want %v; handled %d times", packed, test.packed, len(handled))
			}
		})
	}
}

// received returns the first message that comes to a queue.
func received(t *testing.T, tr transport.Transport, queue string) *transport.Message {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := tr.Open(ctx, transport.Env{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	r, err := conn.OpenReceiver(ctx, transport.ReceiverOptions{Queue: queue})
	if err != nil {
		t.Fatal(err)
	}
	ds, err := r.Receive(ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	return ds[0].Message()
}

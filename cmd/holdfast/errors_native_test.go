package main

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/recoverability"
)

// foreignOrder is the type that messages of another producer name in their headers.
const foreignOrder = "Shop.PlaceOrder"

// failAndReturn installs the endpoint "sales" and has put send a message to its queue. The handler
// fails it; it is retried once after a delay, moved to the error queue, and returned from there
// when the endpoint has stopped.
func failAndReturn(t *testing.T, put func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	tr, err := parseTransport(getenv(t)(transportVar))
	if err != nil {
		t.Fatal(err)
	}
	moved := make(chan struct{}, 1)
	e, err := endpoint.New(endpoint.Config{
		Name: "sales", Transport: tr.Transport, Install: true, Logger: slog.New(slog.DiscardHandler),
		Messages: []endpoint.Message{endpoint.Command[struct{}](foreignOrder)},
		Handlers: []endpoint.Handler{endpoint.Handle(func(context.Context, *endpoint.Session, struct{}) error {
			return errors.New("by the test")
		})},
		Recoverability: recoverability.Config{Immediate: recoverability.None, Delayed: 1, Delays: recoverability.Delays{Delay: 10 * time.Millisecond}},
		Notify: []func(context.Context, recoverability.Notification){func(_ context.Context, n recoverability.Notification) {
			if n.Kind == recoverability.MovedToError {
				moved <- struct{}{}
			}
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	if err := e.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	put()
	select {
	case <-moved:
	case <-time.After(30 * time.Second):
		t.Error("the message is not in the error queue within 30 s")
	}
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	must(t, "", "errors", "retry", "--all")
}

func TestAReturnedMessageHasItsPropertiesOnServiceBus(t *testing.T) {
	t.Parallel()
	n, _ := onBus(t)
	client, err := azservicebus.NewClientFromConnectionString(n.ConnectionString, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close(context.WithoutCancel(t.Context())) })
	failAndReturn(t, func() {
		s, err := client.NewSender("sales", nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.SendMessage(t.Context(), &azservicebus.Message{
			Body: []byte("{}"), MessageID: aws.String("m-1"), ApplicationProperties: map[string]any{header.EnclosedMessageTypes: foreignOrder},
			SessionID: aws.String("tenant-7"), PartitionKey: aws.String("tenant-7"), ReplyToSessionID: aws.String("answers"),
			Subject: aws.String("place-order"), To: aws.String("elsewhere"),
		}, nil); err != nil {
			t.Fatal(err)
		}
	})
	r, err := client.NewReceiverForQueue("sales", nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	ms, err := r.ReceiveMessages(ctx, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{
		"session-id": aws.ToString(ms[0].SessionID), "partition-key": aws.ToString(ms[0].PartitionKey), "subject": aws.ToString(ms[0].Subject),
		"to": aws.ToString(ms[0].To), "reply-to-session-id": aws.ToString(ms[0].ReplyToSessionID),
	}
	want := map[string]string{
		"session-id": "tenant-7", "partition-key": "tenant-7", "subject": "place-order", "to": "elsewhere", "reply-to-session-id": "answers",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAReturnedMessageHasItsGroupOnAmazonSQS(t *testing.T) {
	t.Parallel()
	onSQS(t)
	u, err := url.Parse(getenv(t)(transportVar))
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := config.LoadDefaultConfig(t.Context(), config.WithRegion(u.Host), config.WithBaseEndpoint(u.Query().Get("endpoint")))
	if err != nil {
		t.Fatal(err)
	}
	client, name := sqs.NewFromConfig(loaded), u.Query().Get("queue_prefix")+"sales"
	var queue *string
	failAndReturn(t, func() {
		found, err := client.GetQueueUrl(t.Context(), &sqs.GetQueueUrlInput{QueueName: &name})
		if err != nil {
			t.Fatal(err)
		}
		queue = found.QueueUrl
		if _, err := client.SendMessage(t.Context(), &sqs.SendMessageInput{
			QueueUrl: queue, MessageBody: aws.String("{}"), MessageGroupId: aws.String("tenant-7"),
			MessageAttributes: map[string]types.MessageAttributeValue{
				header.EnclosedMessageTypes: {DataType: aws.String("String"), StringValue: aws.String(foreignOrder)},
			},
		}); err != nil {
			t.Fatal(err)
		}
	})
	out, err := client.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{
		QueueUrl: queue, WaitTimeSeconds: 10, MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll},
	})
	if err != nil || len(out.Messages) != 1 {
		t.Fatalf("%d messages, %v", len(out.Messages), err)
	}
	if got := out.Messages[0].Attributes["MessageGroupId"]; got != "tenant-7" {
		t.Errorf("message group %q, want tenant-7", got)
	}
}

func TestAReturnedMessageHasItsPropertiesOnRabbitMQ(t *testing.T) {
	t.Parallel()
	broker := brokertest.RabbitMQ(t)
	setenv(t, transportVar, broker)
	conn, err := amqp.Dial(broker)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	failAndReturn(t, func() {
		if err := ch.PublishWithContext(t.Context(), "", "sales", true, false, amqp.Publishing{
			Body: []byte("{}"), Headers: amqp.Table{header.EnclosedMessageTypes: foreignOrder}, AppId: "legacy", Type: "order, version 1",
			ContentEncoding: "identity", Priority: 3, Timestamp: at,
		}); err != nil {
			t.Fatal(err)
		}
	})
	d, ok, err := ch.Get("sales", true)
	if err != nil || !ok {
		t.Fatalf("the message is not there: %v", err)
	}
	got := map[string]any{
		"app-id": d.AppId, "type": d.Type, "content-encoding": d.ContentEncoding, "priority": d.Priority, "timestamp": d.Timestamp.UTC(),
	}
	want := map[string]any{
		"app-id": "legacy", "type": "order, version 1", "content-encoding": "identity", "priority": uint8(3), "timestamp": at,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

package acceptance_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/postgres"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
	"github.com/holdfast-go/holdfast/transport/sqs"
)

// landscape is a broker on which .NET endpoints were recorded.
type landscape struct {
	transport.Transport
	file     string
	xml      bool
	own, net string                                        // the Go endpoint and the .NET endpoint
	prefix   string                                        // of queues
	put      func(t *testing.T, m *recorded, queue string) // as the .NET endpoint has sent it
}

var landscapes = map[string]func(t *testing.T) *landscape{
	"rabbitmq":            func(t *testing.T) *landscape { return onRabbitMQ(t, "rabbitmq.json") },
	"rabbitmq-newtonsoft": func(t *testing.T) *landscape { return onRabbitMQ(t, "rabbitmq-newtonsoft.json") },
	"rabbitmq-xml":        func(t *testing.T) *landscape { return onRabbitMQ(t, "rabbitmq-xml.json") },
	"postgresql":          onPostgreSQL,
	"sqs":                 onSQS,
}

func onRabbitMQ(t *testing.T, file string) *landscape {
	url := brokertest.RabbitMQ(t)
	conn, err := amqp.Dial(url)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	must(t, err)
	must(t, ch.Confirm(false))
	return &landscape{
		Transport: &rabbitmq.Transport{URL: url}, file: file, xml: strings.Contains(file, "xml"),
		own: "Go.Peer", net: "Net.Peer",
		put: func(t *testing.T, m *recorded, queue string) {
			confirm, err := ch.PublishWithDeferredConfirm("", queue, true, false, m.amqp(t))
			must(t, err)
			if ok, err := confirm.WaitContext(t.Context()); !ok || err != nil {
				t.Fatalf("%s: published %v, %v", m.What, ok, err)
			}
		},
	}
}

// amqp returns the message with its properties and all headers that its client had written.
func (m *recorded) amqp(t *testing.T) amqp.Publishing {
	t.Helper()
	var of struct {
		Properties struct {
			Headers                                        map[string]any
			Expiration, Type                               string
			DeliveryMode                                   uint8 `json:"delivery_mode"`
			MessageID, CorrelationID, ReplyTo, ContentType string
		}
	}
	text := string(m.raw)
	for snake, camel := range map[string]string{
		"message_id": "MessageID", "correlation_id": "CorrelationID", "reply_to": "ReplyTo", "content_type": "ContentType",
	} {
		text = strings.Replace(text, `"`+snake+`"`, `"`+camel+`"`, 1)
	}
	must(t, json.Unmarshal([]byte(text), &of))
	p := of.Properties
	delete(p.Headers, "x-delivery-count") // the broker's
	return amqp.Publishing{
		Headers: table(p.Headers), MessageId: p.MessageID, CorrelationId: p.CorrelationID, ReplyTo: p.ReplyTo,
		ContentType: p.ContentType, Type: p.Type, Expiration: p.Expiration, DeliveryMode: p.DeliveryMode, Body: []byte(m.Body),
	}
}

// table returns headers of JSON as AMQP has them.
func table(headers map[string]any) amqp.Table {
	to := amqp.Table{}
	for name, value := range headers {
		to[name] = field(value)
	}
	return to
}

func field(value any) any {
	switch value := value.(type) {
	case float64:
		return int64(value)
	case map[string]any:
		return table(value)
	case []any:
		all := make([]any, len(value))
		for i, v := range value {
			all[i] = field(v)
		}
		return all
	}
	return value
}

func onPostgreSQL(t *testing.T) *landscape {
	url := brokertest.Postgres(t)
	conn, err := pgx.Connect(t.Context(), url)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return &landscape{
		Transport: &postgres.Transport{URL: url}, file: "postgresql.json", own: "GoPeer", net: "NetPeer",
		put: func(t *testing.T, m *recorded, queue string) {
			var of struct{ ID, Headers, Body string }
			must(t, json.Unmarshal(m.raw, &of))
			_, err := conn.Exec(t.Context(), `INSERT INTO "public".`+pgx.Identifier{queue}.Sanitize()+
				` (id, expires, headers, body) VALUES ($1, NULL, $2, $3)`, of.ID, of.Headers, []byte(of.Body))
			must(t, err)
		},
	}
}

func onSQS(t *testing.T) *landscape {
	url, prefix := brokertest.SQS(t), brokertest.Name(t, "")+"-"
	client := awssqs.NewFromConfig(*awsConfig(), func(o *awssqs.Options) { o.BaseEndpoint = aws.String(url) })
	return &landscape{
		Transport: &sqs.Transport{Endpoint: url, Config: awsConfig(), QueuePrefix: prefix}, file: "sqs.json",
		own: "Go-Peer", net: "Net-Peer", prefix: prefix,
		put: func(t *testing.T, m *recorded, queue string) {
			var of struct {
				Body              string
				MessageAttributes map[string]struct{ DataType, StringValue string }
			}
			must(t, json.Unmarshal(m.raw, &of))
			in := &awssqs.SendMessageInput{MessageBody: &of.Body, MessageAttributes: map[string]sqstypes.MessageAttributeValue{}}
			for name, value := range of.MessageAttributes {
				in.MessageAttributes[name] = sqstypes.MessageAttributeValue{DataType: &value.DataType, StringValue: &value.StringValue}
			}
			found, err := client.GetQueueUrl(t.Context(), &awssqs.GetQueueUrlInput{QueueName: aws.String(prefix + queue)})
			must(t, err)
			in.QueueUrl = found.QueueUrl
			_, err = client.SendMessage(t.Context(), in)
			must(t, err)
		},
	}
}

// install creates a queue.
func (on *landscape) install(t *testing.T, queue string) {
	t.Helper()
	conn, err := on.Open(t.Context(), transport.Env{Endpoint: queue})
	must(t, err)
	must(t, conn.(transport.Installer).Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: queue}}}))
	must(t, conn.Close())
}

// take receives n messages of a queue.
func (on *landscape) take(t *testing.T, queue string, n int) (all []*transport.Message) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeLimit)
	defer cancel()
	conn, err := on.Open(ctx, transport.Env{})
	must(t, err)
	defer func() { must(t, conn.Close()) }()
	r, err := conn.OpenReceiver(ctx, transport.ReceiverOptions{Queue: queue})
	must(t, err)
	r.Window(n)
	for len(all) < n {
		ds, err := r.Receive(ctx, n)
		if err != nil {
			t.Fatalf("%d of %d messages of %q: %v", len(all), n, queue, err)
		}
		for _, d := range ds {
			all = append(all, d.Message())
			must(t, d.Complete(ctx))
		}
	}
	return all
}

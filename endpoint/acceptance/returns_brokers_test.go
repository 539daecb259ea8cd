package acceptance_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport/asb"
	"github.com/holdfast-go/holdfast/transport/postgres"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
	"github.com/holdfast-go/holdfast/transport/sqs"
)

// returners are ServiceControl on each broker. Prefixes and hierarchies are those of ServiceControl
// too.
var returners = map[string]func(t *testing.T) *returner{
	"quorum":                      rabbitReturner,
	"postgres":                    func(t *testing.T) *returner { return postgresReturner(t, "") },
	"postgres in a schema":        func(t *testing.T) *returner { return postgresReturner(t, `shop."eu"`) },
	"sqs":                         func(t *testing.T) *returner { return sqsReturner(t, "") },
	"sqs with a prefix":           func(t *testing.T) *returner { return sqsReturner(t, "te.st.") },
	"servicebus":                  func(t *testing.T) *returner { return busReturner(t, "") },
	"servicebus with a hierarchy": func(t *testing.T) *returner { return busReturner(t, "shop/eu") },
	"servicebus with a hierarchy that queues begin with": func(t *testing.T) *returner { return busReturner(t, "Go") },
}

func rabbitReturner(t *testing.T) *returner {
	url := brokertest.RabbitMQ(t)
	conn, err := amqp.Dial(url)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	must(t, err)
	must(t, ch.Confirm(false))
	return &returner{
		Transport: &rabbitmq.Transport{URL: url},
		address:   func(queue string) string { return queue },
		put: func(t *testing.T, address, nativeID string, headers map[string]string, body []byte) {
			table := amqp.Table{}
			for name, value := range headers {
				table[name] = value
			}
			confirm, err := ch.PublishWithDeferredConfirm(address, "", true, false, amqp.Publishing{
				Headers: table, MessageId: nativeID, DeliveryMode: amqp.Persistent, Body: body,
				Type: headers[header.EnclosedMessageTypes],
			})
			must(t, err)
			if ok, err := confirm.WaitContext(t.Context()); !ok || err != nil {
				t.Fatalf("publish to %q: %v, %v", address, ok, err)
			}
		},
	}
}

// postgresReturner reads an address as NServiceBus does: the first dot outside of quotation marks
// is between schema and table. It knows no schema but that of the address.
func postgresReturner(t *testing.T, schema string) *returner {
	url := brokertest.Postgres(t)
	conn, err := pgx.Connect(t.Context(), url)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	own := schema
	if own == "" {
		own = "public"
	}
	return &returner{
		Transport: &postgres.Transport{URL: url, Schema: schema},
		address:   func(queue string) string { return pgx.Identifier{own, queue}.Sanitize() },
		put: func(t *testing.T, address, _ string, headers map[string]string, body []byte) {
			text, err := json.Marshal(headers)
			must(t, err)
			if strings.Count(strings.ReplaceAll(address, `""`, ""), `"`) != 4 {
				t.Fatalf("%s is no address with schema and table", address)
			}
			if body == nil {
				body = []byte{}
			}
			_, err = conn.Exec(t.Context(), `INSERT INTO `+address+` (id, expires, headers, body) VALUES (gen_random_uuid(), NULL, $1, $2)`,
				string(text), body)
			must(t, err)
		},
	}
}

// sqsReturner sends to the queue of exactly that name.
func sqsReturner(t *testing.T, prefix string) *returner {
	url := brokertest.SQS(t)
	client := awssqs.NewFromConfig(*awsConfig(), func(o *awssqs.Options) { o.BaseEndpoint = aws.String(url) })
	prefix = prefix + brokertest.Name(t, "") + "-"
	return &returner{
		Transport: &sqs.Transport{Endpoint: url, Config: awsConfig(), QueuePrefix: prefix},
		address:   func(queue string) string { return strings.ReplaceAll(prefix+queue, ".", "-") },
		put: func(t *testing.T, address, nativeID string, headers map[string]string, body []byte) {
			queue, err := client.GetQueueUrl(t.Context(), &awssqs.GetQueueUrlInput{QueueName: &address})
			must(t, err)
			text, err := json.Marshal(map[string]any{"Body": body, "Headers": headers, "S3BodyKey": nil})
			must(t, err)
			_, err = client.SendMessage(t.Context(), &awssqs.SendMessageInput{
				QueueUrl: queue.QueueUrl, MessageBody: aws.String(string(text)), MessageAttributes: map[string]sqstypes.MessageAttributeValue{
					header.MessageID: {DataType: aws.String("String"), StringValue: &nativeID},
				},
			})
			must(t, err)
		},
	}
}

// busReturner sends to the queue of exactly that path.
func busReturner(t *testing.T, hierarchy string) *returner {
	ns := brokertest.ServiceBus(t)
	client, err := azservicebus.NewClientFromConnectionString(ns.ConnectionString, nil)
	must(t, err)
	t.Cleanup(func() { _ = client.Close(context.WithoutCancel(t.Context())) })
	prefix := ""
	if hierarchy != "" {
		prefix = hierarchy + "/"
	}
	return &returner{
		Transport: &asb.Transport{ConnectionString: ns.ConnectionString, Administration: ns.Admin, Hierarchy: hierarchy},
		address:   func(queue string) string { return prefix + queue },
		put: func(t *testing.T, address, nativeID string, headers map[string]string, body []byte) {
			sender, err := client.NewSender(address, nil)
			must(t, err)
			defer sender.Close(context.WithoutCancel(t.Context()))
			properties := map[string]any{}
			for name, value := range headers {
				properties[name] = value
			}
			must(t, sender.SendMessage(t.Context(), &azservicebus.Message{
				MessageID: &nativeID, Body: body, ApplicationProperties: properties, ReplyTo: aws.String(headers[header.ReplyToAddress]),
			}, nil))
		},
	}
}

package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

// A message that failed in a .NET endpoint is listed, shown and returned to that endpoint's queue
// on RabbitMQ.
func TestAFailureOfNServiceBusIsReturnedOnRabbitMQ(t *testing.T) {
	broker := brokertest.RabbitMQ(t)
	setenv(t, transportVar, broker)
	conn, err := amqp.Dial(broker)
	done(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	done(t, err)
	for _, queue := range []string{"error", "Net.Peer"} { // as NServiceBus declares them
		_, err := ch.QueueDeclare(queue, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
		done(t, err)
		done(t, ch.ExchangeDeclare(queue, "fanout", true, false, false, false, nil))
		done(t, ch.QueueBind(queue, "", queue, false, nil))
	}
	headers, body := recordedOnRabbitMQ(t)
	id := headers["NServiceBus.MessageId"].(string)
	done(t, ch.Confirm(false))
	confirm, err := ch.PublishWithDeferredConfirm("error", "", true, false, amqp.Publishing{
		Headers: headers, MessageId: id, ContentType: "application/json", Type: "Interop.NetPoison",
		ReplyTo: "Go.Peer", DeliveryMode: amqp.Persistent, Body: []byte(body),
	})
	done(t, err)
	if ok, err := confirm.WaitContext(t.Context()); !ok || err != nil {
		t.Fatalf("published: %v, %v", ok, err)
	}

	if out := must(t, "", "errors", "list"); !strings.Contains(out, "Net.Peer") || !strings.Contains(out, "net poison: from Go") {
		t.Errorf("the list:\n%s", out)
	}
	if out := must(t, "", "errors", "show", id); !strings.Contains(out, "Interop.Handlers.Handle") {
		t.Errorf("shown:\n%s", out)
	}
	must(t, "", "errors", "retry", id)
	d, ok, err := ch.Get("Net.Peer", true)
	if err != nil || !ok {
		t.Fatalf("it was not returned: %v", err)
	}
	want := amqp.Table{"Holdfast.Returns": "1"}
	for name, value := range headers {
		if !strings.HasPrefix(name, "NServiceBus.ExceptionInfo.") && !strings.HasPrefix(name, "NServiceBus.Retries") &&
			name != "NServiceBus.FailedQ" && name != "NServiceBus.TimeOfFailure" {
			want[name] = value
		}
	}
	delete(d.Headers, "x-delivery-count") // the broker's
	if diff := cmp.Diff(want, d.Headers); diff != "" || d.MessageId != id || string(d.Body) != body {
		t.Errorf("returned as %q, body %s, headers (-want +got):\n%s", d.MessageId, d.Body, diff)
	}
}

// recordedOnRabbitMQ returns the recording of a message that failed in a handler of .NET, without
// the headers of the broker and of the client.
func recordedOnRabbitMQ(t *testing.T) (headers amqp.Table, body string) {
	t.Helper()
	text, err := os.ReadFile("../../testdata/nservicebus/rabbitmq.json")
	done(t, err)
	var all []struct {
		Queue, Body string
		Properties  struct{ Headers map[string]any }
	}
	done(t, json.Unmarshal(text, &all))
	headers = amqp.Table{}
	for _, m := range all {
		if m.Queue != "error" {
			continue
		}
		for name, value := range m.Properties.Headers {
			if text, ok := value.(string); ok {
				headers[name] = text
			}
		}
		return headers, m.Body
	}
	t.Fatal("no recording of a failed message")
	return nil, ""
}

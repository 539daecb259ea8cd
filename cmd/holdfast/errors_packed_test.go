package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/errorqueue"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/transport"
)

// exported returns the one message of a queue, as errors export writes it.
func exported(t *testing.T, queue string) (r errorqueue.Record) {
	t.Helper()
	out := must(t, "", "errors", "export", "--queue", queue)
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v: %.500s", err, out)
	}
	return r
}

// The commands show, list, export and return a packed message as its sender made it.
func TestPackedMessagesInCommands(t *testing.T) {
	setenv(t, transportVar, "sqlite:"+filepath.Join(t.TempDir(), "q.db"))
	must(t, "", "endpoint", "create", "sales")
	foreign := strings.Repeat("x", 5000)
	m := &transport.Message{ID: "m-1", Body: []byte("the body"), Headers: header.New(
		header.Field{Name: header.MessageID, Value: "m-1"}, header.Field{Name: header.EnclosedMessageTypes, Value: foreignOrder},
		header.Field{Name: "Foreign", Value: foreign},
	)}
	fault := header.New(header.Field{Name: header.FailedQ, Value: "sales"}, header.Field{Name: header.HoldfastFaultClass, Value: "timeout"})
	var packed *transport.Message // the last, in front of the body
	for form, c := range copies.ForErrorQueue(m, fault) {
		if form == copies.Packed {
			packed = c
		}
	}
	tr, err := parseTransport(getenv(t)(transportVar))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := tr.Open(t.Context(), transport.Env{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Dispatch(t.Context(), []transport.Operation{{Queue: "error", Message: packed}}); err != nil {
		t.Fatal(err)
	}
	if out := must(t, "", "errors", "list", "--type", foreignOrder); !strings.Contains(out, "timeout") || !strings.Contains(out, "m-1") {
		t.Errorf("list: %s", out)
	}
	if out := must(t, "", "errors", "show", "m-1"); !strings.Contains(out, "Foreign: "+foreign) || !strings.Contains(out, "the body") ||
		strings.Contains(out, header.HoldfastReceived) {
		t.Errorf("show: %.1000s", out)
	}
	if r := exported(t, "error"); r.Headers.Get("Foreign") != foreign || string(r.Body) != "the body" || r.Headers.Get(header.FailedQ) != "sales" {
		t.Errorf("export: %+v", r.Entry)
	}
	must(t, "", "errors", "retry", "m-1")
	if r := exported(t, "sales"); r.Headers.Get("Foreign") != foreign || string(r.Body) != "the body" || r.Headers.Get(header.HoldfastReturns) != "1" {
		t.Errorf("returned: %+v", r.Entry)
	}
}

// A message whose headers fill a frame of RabbitMQ, 131,072 bytes, is retried, moved to the error
// queue and returned.
func TestFullHeadersAreReturnedOnRabbitMQ(t *testing.T) {
	for _, size := range []int{121_000, 126_000, 130_500, 130_850} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			url := brokertest.RabbitMQ(t)
			setenv(t, transportVar, url)
			foreign := strings.Repeat("x", size-len("Foreign"))
			failAndReturn(t, func() {
				err := channel(t, url).PublishWithContext(t.Context(), "", "sales", true, false, amqp.Publishing{
					MessageId: "m-1", Body: []byte("{}"), Headers: amqp.Table{"Foreign": foreign, header.EnclosedMessageTypes: foreignOrder},
				})
				if err != nil {
					t.Error(err)
				}
			})
			if r := exported(t, "sales"); r.ID != "m-1" || r.Headers.Get("Foreign") != foreign || r.Undecodable != "" || string(r.Body) != "{}" {
				t.Errorf("returned %+v with %d bytes", r.Entry, len(r.Headers.Get("Foreign")))
			}
		})
	}
}

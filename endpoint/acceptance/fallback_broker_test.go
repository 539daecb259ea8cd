package acceptance_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// The worst message there is, on real brokers: it has nearly as many headers as there is room for,
// its error says a megabyte, and the policy names a queue that does not exist.
func TestFallbacks(t *testing.T) {
	others := []string{"postgres", "sqlite", "servicebus", "sqs"}
	onBrokers(t, []string{"quorum"}, others, func(t *testing.T, broker string) {
		// The size of a header that fits, and with it: the fallbacks. The bound of SQS is that of a
		// whole message.
		large, want := 90_000, []string{"default_queue"}
		switch broker {
		case "quorum":
			large, want = 105_000, []string{"trimmed_headers", "default_queue"} // of 128 KiB
		case "servicebus":
			large, want = 32_500, []string{"trimmed_headers", "default_queue"} // of 64 KiB
		case "sqs":
			large = 40_000
		}
		fallbacksOn(t, openBroker(t, broker), large, want)
	})
}

func fallbacksOn(t *testing.T, broker transport.Transport, size int, want []string) {
	var fallbacks []string
	parked := make(chan recoverability.Notification, 10)
	queue, errorQueue := brokertest.Name(t, "way"), brokertest.Name(t, "error")
	cfg := endpoint.Config{
		Name: queue, Transport: broker, Install: true,
		Messages: []endpoint.Message{endpoint.Command[work]("Way.Work")},
		Handlers: []endpoint.Handler{endpoint.Handle(func(context.Context, *endpoint.Session, work) error {
			return errors.New(strings.Repeat("é", 1<<19))
		})},
		Recoverability: recoverability.Config{
			ErrorQueue: errorQueue,
			Policy: func(recoverability.Failure) recoverability.Action {
				return recoverability.MoveToError{Queue: brokertest.Name(t, "nowhere")}
			},
		},
		Notify: []func(context.Context, recoverability.Notification){func(_ context.Context, n recoverability.Notification) {
			if n.Kind == recoverability.FallbackTaken {
				fallbacks = append(fallbacks, string(n.Fallback))
				return
			}
			parked <- n
		}},
	}
	large := strings.Repeat("x", size)
	r := start(t, cfg)
	r.send(work{7}, endpoint.To(queue), endpoint.Header("Large", large), endpoint.MessageID("m-1"))
	select {
	case n := <-parked:
		if n.Kind != recoverability.MovedToError || n.To != errorQueue {
			t.Errorf("told of %v to %q", n.Kind, n.To)
		}
	case <-time.After(timeLimit):
		t.Fatal("the message is still there")
	}
	r.end()
	if diff := cmp.Diff(want, slices.Compact(fallbacks)); diff != "" {
		t.Error(diff)
	}
	got := takeOne(t, broker, errorQueue)
	if got.ID != "m-1" || string(got.Body) != `{"N":7}` || got.Headers.Get("Large") != large || got.Headers.Get(header.FailedQ) != addressOn(t, broker, queue) {
		t.Errorf("the error queue has %q: %d bytes of headers, body %s", got.ID, got.Headers.Size(), got.Body)
	}
}

// takeOne receives the message of a queue.
func takeOne(t *testing.T, broker transport.Transport, queue string) *transport.Message {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeLimit)
	defer cancel()
	conn, err := broker.Open(ctx, transport.Env{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}()
	r, err := conn.OpenReceiver(ctx, transport.ReceiverOptions{Queue: queue})
	if err != nil {
		t.Fatal(err)
	}
	r.Window(1)
	got, err := r.Receive(ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	return got[0].Message()
}

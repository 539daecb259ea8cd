package acceptance_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

// Messages of a foreign producer with headers up to the bound of a frame, 131,072 bytes, are
// delayed and moved to the error queue, and are handled once when they have been returned as
// ServiceControl does, with and without an audit queue and an outbox.
func TestFullHeadersOnRabbitMQ(t *testing.T) {
	onBrokers(t, []string{"quorum"}, []string{"classic"}, func(t *testing.T, broker string) {
		for _, size := range []int{121_000, 126_000, 130_500, 130_850} {
			for _, audits := range []bool{false, true} {
				for _, stores := range []bool{false, true} {
					t.Run(fmt.Sprintf("%d, audit %v, outbox %v", size, audits, stores), func(t *testing.T) {
						fullHeaders(t, openBroker(t, broker), size, audits, stores)
					})
				}
			}
		}
	})
}

func fullHeaders(t *testing.T, broker transport.Transport, size int, audits, stores bool) {
	t.Helper()
	queue, errorQueue, auditQueue := brokertest.Name(t, "full"), brokertest.Name(t, "error"), brokertest.Name(t, "audit")
	var fails atomic.Bool
	fails.Store(true)
	handled, moved := make(chan string, 10), make(chan recoverability.Notification, 10)
	cfg := endpoint.Config{
		Name: queue, Transport: broker, Install: true, Messages: []endpoint.Message{endpoint.Command[work]("Way.Work")},
		Handlers: []endpoint.Handler{endpoint.Handle(func(_ context.Context, s *endpoint.Session, _ work) error {
			if fails.Load() {
				return errNo
			}
			handled <- s.Headers().Get("Foreign")
			return nil
		})},
		Recoverability: recoverability.Config{
			ErrorQueue: errorQueue, Immediate: 1, Delayed: 1, Delays: recoverability.Delays{Delay: time.Second},
		},
		Notify: []func(context.Context, recoverability.Notification){func(_ context.Context, n recoverability.Notification) {
			if n.Kind == recoverability.MovedToError || n.Kind == recoverability.DeadLettered || n.Kind == recoverability.CriticalError {
				moved <- n
			}
		}},
	}
	if audits {
		cfg.AuditQueue = auditQueue
	}
	if stores {
		cfg.Outbox = &sqlite.Transport{Path: filepath.Join(t.TempDir(), "shop.db")}
	}
	r := start(t, cfg)
	foreign := strings.Repeat("x", size-len("Foreign"))
	sent := &transport.Message{ID: "m-1", Body: []byte(`{"N":7}`), Headers: header.New(
		header.Field{Name: header.EnclosedMessageTypes, Value: "Way.Work"}, header.Field{Name: "Foreign", Value: foreign},
	)}
	sendTo(t, broker, queue, sent)
	movedToError(t, moved)
	failed, _ := takeFirst(t, broker, errorQueue)
	if got := copies.Unpacked(failed); got.ID != "m-1" || got.Headers.Get("Foreign") != foreign || got.Headers.Get(header.FailedQ) != queue {
		t.Fatalf("the error queue has %s with %d bytes of headers: %v", got.ID, got.Headers.Size(), got.Undecodable)
	}
	fails.Store(false)
	returned := *failed
	if returned.Headers.Get(header.HoldfastReceived) == "" { // there is room for the headers of the failure
		returned.Headers = returned.Headers.Clone()
		returned.Headers.Del(header.ExceptionStackTrace)
	}
	sendTo(t, broker, queue, &returned)
	select {
	case got := <-handled:
		if got != foreign {
			t.Errorf("handled with %d bytes of the foreign header", len(got))
		}
	case <-time.After(timeLimit):
		t.Fatal("the returned message is not handled")
	}
	if audits {
		audited, from := takeFirst(t, broker, auditQueue, errorQueue)
		if from == errorQueue { // there is no room for the headers of the audit
			movedToError(t, moved)
		}
		if got := copies.Unpacked(audited); got.Headers.Get("Foreign") != foreign || got.Headers.Get(header.ProcessingEnded) == "" {
			t.Errorf("%s has %s with %d bytes of headers", from, got.ID, got.Headers.Size())
		}
	}
	r.end()
	if len(handled) > 0 || len(moved) > 0 {
		t.Errorf("handled %d times more, moved %d times more", len(handled), len(moved))
	}
	if n := ready(t, broker, queue); n != 0 {
		t.Errorf("%d messages are left", n)
	}
}

// movedToError fails the test unless the next notification is a move to the error queue.
func movedToError(t *testing.T, moved <-chan recoverability.Notification) {
	t.Helper()
	select {
	case n := <-moved:
		if n.Kind != recoverability.MovedToError {
			t.Fatalf("notified of %s: %v", n.Kind, n.Failure.Err)
		}
	case <-time.After(timeLimit):
		t.Fatal("no message is moved")
	}
}

// connected calls f with a connection.
func connected(t *testing.T, broker transport.Transport, f func(ctx context.Context, conn transport.Conn) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeLimit)
	defer cancel()
	conn, err := broker.Open(ctx, transport.Env{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := f(ctx, conn); err != nil {
		t.Fatal(err)
	}
}

func sendTo(t *testing.T, broker transport.Transport, queue string, m *transport.Message) {
	t.Helper()
	connected(t, broker, func(ctx context.Context, conn transport.Conn) error {
		_, err := conn.Dispatch(ctx, []transport.Operation{{Queue: queue, Message: m}})
		return err
	})
}

func ready(t *testing.T, broker transport.Transport, queue string) (n int64) {
	t.Helper()
	connected(t, broker, func(ctx context.Context, conn transport.Conn) error {
		stats, err := conn.(transport.Inspector).Inspect(ctx, queue)
		if err == nil {
			n = stats[0].Ready
		}
		return err
	})
	return n
}

// takeFirst removes the first message that comes to one of the queues, and returns the message and
// its queue.
func takeFirst(t *testing.T, broker transport.Transport, queues ...string) (m *transport.Message, from string) {
	t.Helper()
	connected(t, broker, func(ctx context.Context, conn transport.Conn) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		type arrival struct {
			d    transport.Delivery
			from string
			err  error
		}
		arrivals := make(chan arrival, len(queues))
		for _, queue := range queues {
			r, err := conn.OpenReceiver(ctx, transport.ReceiverOptions{Queue: queue})
			if err != nil {
				return err
			}
			r.Window(1)
			go func() {
				ds, err := r.Receive(ctx, 1)
				if err != nil {
					arrivals <- arrival{err: err}
					return
				}
				arrivals <- arrival{d: ds[0], from: queue}
			}()
		}
		first := <-arrivals
		if first.err != nil {
			return first.err
		}
		m, from = first.d.Message(), first.from
		return first.d.Complete(ctx)
	})
	return m, from
}

package baddays_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

// rawPublisher sends messages as a program does that is no endpoint.
type rawPublisher struct {
	t       *testing.T
	ch      *amqp.Channel
	pending []*amqp.DeferredConfirmation
}

func newRawPublisher(t *testing.T, url string) *rawPublisher {
	t.Helper()
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // with the broker's node it may be gone
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	return &rawPublisher{t: t, ch: ch}
}

// publish sends to a queue. The broker's answer is waited for by wait, or after 500 messages.
func (p *rawPublisher) publish(queue string, m amqp.Publishing) {
	p.t.Helper()
	m.DeliveryMode = amqp.Persistent
	c, err := p.ch.PublishWithDeferredConfirm("", queue, true, false, m)
	if err != nil {
		p.t.Fatal(err)
	}
	if p.pending = append(p.pending, c); len(p.pending) == 500 {
		p.wait()
	}
}

func (p *rawPublisher) wait() {
	p.t.Helper()
	for _, c := range p.pending {
		if !c.Wait() {
			p.t.Fatal("the broker did not take a message")
		}
	}
	p.pending = nil
}

// awaitReady waits until a queue holds so many ready messages.
func awaitReady(ctx context.Context, t *testing.T, conn transport.Conn, queue string, want int) {
	t.Helper()
	pause := backoff.Backoff{Min: 10 * time.Millisecond, Max: 200 * time.Millisecond}
	for {
		stats, err := conn.(transport.Inspector).Inspect(ctx, queue)
		if err == nil && stats[0].Ready == int64(want) {
			return
		}
		if pause.Wait(ctx) != nil {
			t.Fatalf("queue %q: %+v, %v; want %d ready messages", queue, stats, err, want)
		}
	}
}

// work is the message of these endpoints.
type work struct{ N int }

// runWorker runs an endpoint that handles [work] until the test ends, and stops it when stop is
// called.
func runWorker(t *testing.T, cfg endpoint.Config, handle func(context.Context, *endpoint.Session, work) error) (stop func()) {
	t.Helper()
	cfg.Install = true
	cfg.Messages = []endpoint.Message{endpoint.Command[work]("Test.Work")}
	cfg.Handlers = []endpoint.Handler{endpoint.Handle(handle)}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	e, err := endpoint.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- e.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	if err := e.WaitReady(ctx); err != nil {
		over <- err
		t.Fatal("the endpoint has ended")
	}
	return stop
}

// workMessage is a message with [work] as another program sends it.
func workMessage(n int) amqp.Publishing {
	return amqp.Publishing{
		MessageId: fmt.Sprint("work-", n), Body: fmt.Appendf(nil, `{"N":%d}`, n),
		Headers: amqp.Table{header.EnclosedMessageTypes: "Test.Work", header.ContentType: "application/json"},
	}
}

// runs counts how often the handler had each message, and the deliveries of the one that was
// delivered most often.
type runs struct {
	mu    sync.Mutex
	of    map[int]int
	most  int
	moved chan struct{} // something has been counted
}

func newRuns() *runs { return &runs{of: map[int]int{}, moved: make(chan struct{}, 1)} }

func (r *runs) count(s *endpoint.Session, w work) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of[w.N]++
	r.most = max(r.most, s.Attempt().N)
	select {
	case r.moved <- struct{}{}:
	default:
	}
}

// len is how many messages the handler had.
func (r *runs) len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.of)
}

// wait returns when the handler has had n messages.
func (r *runs) wait(ctx context.Context, t *testing.T, n int) {
	t.Helper()
	for r.len() < n {
		select {
		case <-r.moved:
		case <-ctx.Done():
			t.Fatalf("%d of %d messages were handled", r.len(), n)
		}
	}
}

// repeated is how many messages the handler had more than once.
func (r *runs) repeated() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, times := range r.of {
		if times > 1 {
			n++
		}
	}
	return n
}

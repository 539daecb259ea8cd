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
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

type lateWork struct {
	Due time.Time
	N   int
}

// lateEndpoint runs an endpoint and records how late its delayed messages arrive.
type lateEndpoint struct {
	*endpoint.Endpoint
	conn transport.Conn

	mu   sync.Mutex // guards late
	late map[int]time.Duration
	came chan int // holds the number of each message that arrived
}

func newLateEndpoint(t testing.TB, url, name string) *lateEndpoint {
	t.Helper()
	l := &lateEndpoint{late: map[int]time.Duration{}, came: make(chan int, 1<<16), conn: refusedConn(t, url)}
	e, err := endpoint.New(endpoint.Config{
		Name: name, Transport: &rabbitmq.Transport{URL: url}, Install: true, Logger: slog.New(slog.DiscardHandler), Concurrency: 50,
		Messages: []endpoint.Message{endpoint.Command[lateWork]("Late.Work")},
		Handlers: []endpoint.Handler{endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m lateWork) error {
			late := time.Since(m.Due)
			l.mu.Lock()
			defer l.mu.Unlock()
			if _, again := l.late[m.N]; again {
				t.Errorf("message %d arrived twice", m.N)
			}
			l.late[m.N] = late
			l.came <- m.N
			return nil
		})},
	})
	if err != nil {
		t.Fatal(err)
	}
	l.Endpoint = e
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	if err := e.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l
}

// send delays messages n to m by d, all due at the same time.
func (l *lateEndpoint) send(t testing.TB, n, m int, d time.Duration) {
	t.Helper()
	due := time.Now().Add(d)
	var all sync.WaitGroup
	const senders = 50
	for s := range senders {
		all.Go(func() {
			for i := n + s; i < m; i += senders {
				if err := l.SendLocal(t.Context(), lateWork{Due: due, N: i}, endpoint.After(time.Until(due))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

// wait returns the greatest lateness of n messages, once they have arrived.
func (l *lateEndpoint) wait(t testing.TB, n int, within time.Duration) (latest time.Duration) {
	t.Helper()
	deadline := time.After(within)
	for i := range n {
		select {
		case <-l.came:
		case <-deadline:
			t.Fatalf("%d of %d delayed messages arrived within %v", i, n, within)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, late := range l.late {
		latest = max(latest, late)
	}
	return latest
}

// fullTarget is the day on which the queue that messages are delayed to is full.
func fullTarget(t *testing.T) outcome {
	url := brokertest.RabbitMQ(t)
	l := newLateEndpoint(t, url, "fine")
	raw := rabbitChannel(t, url)
	args := amqp.Table{"x-queue-type": "quorum", "x-max-length": 10, "x-overflow": "reject-publish"}
	if _, err := raw.QueueDeclare("full", true, false, false, false, args); err != nil {
		t.Fatal(err)
	}
	operation := func(n int, after time.Duration) transport.Operation {
		m := &transport.Message{ID: fmt.Sprint("full-", n), Body: []byte("x")}
		return transport.Operation{Queue: "full", Message: m, After: after}
	}
	for i := range 10 {
		if _, err := l.conn.Dispatch(t.Context(), []transport.Operation{operation(i, 0)}); err != nil {
			t.Fatal(err)
		}
	}
	const bad = 50
	for i := range bad {
		if _, err := l.conn.Dispatch(t.Context(), []transport.Operation{operation(10+i, time.Second)}); err != nil {
			t.Fatal(err)
		}
	}
	n := size(20, 1000)
	for round := range size(2, 10) {
		l.send(t, round*n, (round+1)*n, time.Second)
		if late := l.wait(t, n, time.Minute); late > 10*time.Second {
			t.Errorf("round %d: another endpoint's delayed message came %v late", round, late)
		}
	}
	l.mu.Lock()
	var latest time.Duration
	for _, late := range l.late {
		latest = max(latest, late)
	}
	l.mu.Unlock()
	o := outcome{message: "waits at the broker", neighbours: fmt.Sprintf("%v late at most", latest.Round(time.Millisecond))}
	if !faults() {
		return o
	}
	// The queue is worked off: all messages for it arrive, none twice.
	begin := time.Now()
	seen := map[string]int{}
	for _, m := range drained(t, l.conn, "full", 10+bad, 10*time.Minute) {
		seen[m.ID]++
	}
	if len(seen) != 10+bad {
		t.Errorf("%d different messages of %d", len(seen), 10+bad)
	}
	o.normal = time.Since(begin)
	return o
}

func rabbitChannel(t testing.TB, url string) *amqp.Channel {
	t.Helper()
	c, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	ch, err := c.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

// oldDelays is the day of an upgrade: messages of a version without relays wait in the delay
// queues, and senders of that version run beside the new ones.
func oldDelays(t *testing.T) outcome {
	url := brokertest.RabbitMQ(t)
	l := newLateEndpoint(t, url, "shop")
	raw := rabbitChannel(t, url)
	// As the older version binds and sends.
	const key = "0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.1.0.1.queue.shop" // 5 s
	const binding = "*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.queue.shop"
	if err := raw.QueueBind("shop", binding, "holdfast.delay-arrivals", false, nil); err != nil {
		t.Fatal(err)
	}
	const old, delay = 1000, 5 * time.Second
	due := time.Now().Add(delay)
	publishDelayed(t, raw, old, "holdfast.delay-level-02", key, due)
	if err := l.Install(t.Context()); err != nil { // once more, over what is there
		t.Fatal(err)
	}
	l.send(t, old, old+old, delay)
	late := l.wait(t, 2*old, time.Minute)
	if late > 10*time.Second {
		t.Errorf("a delayed message came %v late", late)
	}
	return outcome{message: "arrives once", neighbours: fmt.Sprintf("those of the new version too, %v late at most", late.Round(time.Millisecond))}
}

// publishDelayed publishes n messages for an endpoint of [newLateEndpoint] to an exchange of the
// delays, and waits until the broker has them.
func publishDelayed(t testing.TB, ch *amqp.Channel, n int, exchange, key string, due time.Time) {
	t.Helper()
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	confirmed := make([]*amqp.DeferredConfirmation, n)
	for i := range n {
		msg := amqp.Publishing{
			MessageId: fmt.Sprint("delayed-", i), Body: fmt.Appendf(nil, `{"Due":%q,"N":%d}`, due.Format(time.RFC3339Nano), i), ContentType: "application/json",
			Headers: amqp.Table{"NServiceBus.MessageId": fmt.Sprint("delayed-", i), "NServiceBus.EnclosedMessageTypes": "Late.Work"}, DeliveryMode: amqp.Persistent,
		}
		var err error
		if confirmed[i], err = ch.PublishWithDeferredConfirm(exchange, key, true, false, msg); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range confirmed {
		if !c.Wait() {
			t.Fatalf("the broker refused message %d", i)
		}
	}
}

// BenchmarkRabbitMQDueAtOnce measures how late messages arrive that are all due in the same second:
// with one message, undisturbed, and with many, with RabbitMQ's default for the messages that one
// queue dead-letters at a time and with a higher one.
func BenchmarkRabbitMQDueAtOnce(b *testing.B) {
	for _, bench := range []struct{ n, prefetch int }{{1, 32}, {20_000, 32}, {20_000, 512}} {
		b.Run(fmt.Sprintf("n=%d/prefetch=%d", bench.n, bench.prefetch), func(b *testing.B) {
			for b.Loop() {
				node := brokertest.OwnRabbitMQ(b)
				node.Eval(fmt.Sprintf("application:set_env(rabbit, dead_letter_worker_consumer_prefetch, %d).", bench.prefetch))
				l := newLateEndpoint(b, node.URL, "shop")
				l.send(b, 0, bench.n, 40*time.Second)
				b.ReportMetric(l.wait(b, bench.n, 5*time.Minute).Seconds(), "latest-s")
			}
		})
	}
}

// BenchmarkRabbitMQSameDelayAtOnce measures the same for messages with one delay, which wait in one
// queue only. They go through the relay of their destination, or without a relay as those of older
// versions do.
func BenchmarkRabbitMQSameDelayAtOnce(b *testing.B) {
	const bindings = "*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*."
	const delay, steps = 16 * time.Second, "0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.1.0.0.0.0."
	const relay, direct = "to.queue.shop", "queue.shop"
	for _, bench := range []struct {
		n, prefetch int
		destination string
	}{{1, 32, relay}, {20_000, 32, relay}, {20_000, 512, relay}, {20_000, 32, direct}, {20_000, 512, direct}} {
		b.Run(fmt.Sprintf("n=%d/prefetch=%d/%s", bench.n, bench.prefetch, bench.destination), func(b *testing.B) {
			for b.Loop() {
				node := brokertest.OwnRabbitMQ(b)
				node.Eval(fmt.Sprintf("application:set_env(rabbit, dead_letter_worker_consumer_prefetch, %d).", bench.prefetch))
				l := newLateEndpoint(b, node.URL, "shop")
				raw := rabbitChannel(b, node.URL)
				if err := raw.QueueBind("shop", bindings+direct, "holdfast.delay-arrivals", false, nil); err != nil {
					b.Fatal(err)
				}
				publishDelayed(b, raw, bench.n, "holdfast.delay-level-04", steps+bench.destination, time.Now().Add(delay))
				b.ReportMetric(l.wait(b, bench.n, 5*time.Minute).Seconds(), "latest-s")
			}
		})
	}
}

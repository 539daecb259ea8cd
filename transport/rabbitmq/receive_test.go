package rabbitmq_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

func TestAMessageArrivesAsItWasSent(t *testing.T) {
	t.Parallel()
	c := open(t, brokertest.RabbitMQ(t), nil)
	queue := install(t, c, "orders")
	r := receive(t, c, queue, 10)
	for name, m := range map[string]*transport.Message{
		"headers":      sample(200),
		"unicode":      {ID: "ünïcode-✓", Body: []byte("größe 漢字 \x00\xff"), Headers: header.New(header.Field{Name: "Имя", Value: "值\n"})},
		"empty body":   {ID: "empty", Headers: header.New(header.Field{Name: "empty", Value: ""})},
		"no headers":   {ID: "bare", Body: []byte("x")},
		"large body":   {ID: "large", Body: bytes.Repeat([]byte("0123456789abcdef"), 500_000)},
		"long id":      {ID: strings.Repeat("i", 300), Body: []byte("x")},
		"many headers": {ID: "many", Headers: manyHeaders(500, 100)},
	} {
		t.Run(name, func(t *testing.T) {
			if err := dispatch(c, send1(queue, m)); err != nil {
				t.Fatal(err)
			}
			d := next(t, r)
			got := d.Message()
			if got.ID != m.ID {
				t.Errorf("id %q, want %q", got.ID, m.ID)
			}
			if !bytes.Equal(got.Body, m.Body) {
				t.Errorf("body of %d bytes differs from the one of %d", len(got.Body), len(m.Body))
			}
			for name, value := range m.Headers.All() {
				if v, ok := got.Headers.Lookup(name); !ok || v != value {
					t.Errorf("header %q is %q, %v; want %q", name, v, ok, value)
				}
			}
			if a := d.Attempt(); a != (transport.Attempt{N: 1, Exact: true}) {
				t.Errorf("attempt %+v", a)
			}
			must(t, d.Complete(t.Context()))
		})
	}
}

func manyHeaders(n, size int) header.Map {
	var m header.Map
	for i := range n {
		m.Set(fmt.Sprintf("header-%03d", i), strings.Repeat("v", size))
	}
	return m
}

func TestRetryAndReleaseCountOnQuorumQueues(t *testing.T) {
	t.Parallel()
	c := open(t, brokertest.RabbitMQ(t), nil)
	queue := install(t, c, "orders")
	r := receive(t, c, queue, 10)
	must(t, dispatch(c, send1(queue, message("a", "x"))))
	n := 1
	for i := range 6 {
		d := next(t, r)
		if a := d.Attempt(); a != (transport.Attempt{N: n, Exact: true}) {
			t.Errorf("attempt %+v, want %d, exact", a, n)
		}
		if i%2 == 0 {
			must(t, d.Release(t.Context()))
		} else {
			must(t, d.Retry(t.Context()))
		}
		if i%2 != 0 || !c.Limits().FreeRelease { // from 4.3
			n++
		}
	}
	d := next(t, r)
	must(t, d.Complete(t.Context()))
	// Only the broker's count is left out of the headers.
	if _, ok := d.Message().Headers.Lookup("x-delivery-count"); ok {
		t.Error("the broker's count is among the headers")
	}
	nothing(t, r)
}

func TestClassicQueuesReportOnlyAnEarlierAttempt(t *testing.T) {
	t.Parallel()
	c := open(t, brokertest.RabbitMQ(t), classic)
	queue := install(t, c, "orders")
	r := receive(t, c, queue, 10)
	must(t, dispatch(c, send1(queue, message("a", "x"))))
	for _, n := range []int{1, 2, 2} {
		d := next(t, r)
		if a := d.Attempt(); a != (transport.Attempt{N: n}) {
			t.Errorf("attempt %+v, want %d, not exact", a, n)
		}
		must(t, d.Retry(t.Context()))
	}
	must(t, next(t, r).Complete(t.Context()))
}

func TestALostConnectionCountsAsAnAttempt(t *testing.T) {
	t.Parallel()
	for _, queueType := range []rabbitmq.QueueType{rabbitmq.Quorum, rabbitmq.Classic} {
		t.Run(string(queueType), func(t *testing.T) {
			url := brokertest.RabbitMQ(t)
			proxy := newProxy(t, url)
			c := open(t, proxy.URL(t, url), func(tr *rabbitmq.Transport) { tr.QueueType = queueType })
			queue := install(t, c, "orders")
			r := receive(t, c, queue, 10)
			must(t, dispatch(c, send1(queue, message("a", "x"))))
			next(t, r)
			proxy.Cut()
			d := next(t, r)
			if a, want := d.Attempt(), (transport.Attempt{N: 2, Exact: queueType == rabbitmq.Quorum}); a != want {
				t.Errorf("attempt %+v, want %+v", a, want)
			}
			must(t, d.Complete(t.Context()))
		})
	}
}

func TestTheWindowBoundsUnsettledDeliveries(t *testing.T) {
	t.Parallel()
	onBothTypes(t, func(t *testing.T, url string, c transport.Conn, queue string) {
		fill(t, c, queue, 60)
		r := receive(t, c, queue, 5)
		out := nextN(t, r, 5)
		nothing(t, r)

		r.Window(8) // three more
		out = append(out, nextN(t, r, 3)...)
		nothing(t, r)

		r.Window(2) // none before six are settled
		for _, d := range out[:6] {
			must(t, d.Complete(t.Context()))
		}
		nothing(t, r)
		out = out[6:]
		for _, d := range out {
			must(t, d.Complete(t.Context()))
		}
		out = nextN(t, r, 2)
		nothing(t, r)

		r.Window(0)
		for _, d := range out {
			must(t, d.Complete(t.Context()))
		}
		nothing(t, r)
		for n := 1; n <= 20; n++ { // more shares than consumers
			r.Window(n)
			out := nextN(t, r, n/20+1)
			for _, d := range out {
				must(t, d.Release(t.Context()))
			}
		}
		r.Window(50)
		for _, d := range nextN(t, r, 50) {
			must(t, d.Complete(t.Context()))
		}
		waitEmpty(t, c, url, queue)
	})
}

// waitEmpty checks that the broker holds no message, delivered or not, after closing the receivers.
func waitEmpty(t *testing.T, c transport.Conn, url, queue string) {
	t.Helper()
	must(t, c.Close())
	other := open(t, url, nil)
	stats, err := other.(transport.Inspector).Inspect(within(t), queue)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]transport.QueueStats{{Name: queue, Unsettled: -1, Delayed: -1}}, stats); diff != "" {
		t.Errorf("after everything is completed (-want +got):\n%s", diff)
	}
}

func TestCompletionsInAnyOrderAreAllAcknowledged(t *testing.T) {
	t.Parallel()
	url := brokertest.RabbitMQ(t)
	c := open(t, url, nil)
	queue := install(t, c, "orders")
	const n = 500
	fill(t, c, queue, n)
	r := receive(t, c, queue, 100)
	work := make(chan transport.Delivery, n)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			var held []transport.Delivery
			for d := range work {
				if held = append(held, d); len(held) < 3 {
					continue
				}
				slices.Reverse(held)
				for _, d := range held {
					must(t, d.Complete(context.Background()))
				}
				held = held[:0]
			}
			for _, d := range held {
				must(t, d.Complete(context.Background()))
			}
		})
	}
	for range n - 60 { // the last ones stay in the workers' hands
		work <- next(t, r)
	}
	close(work)
	wg.Wait()
	for _, d := range nextN(t, r, 60) {
		must(t, d.Complete(t.Context()))
	}
	waitEmpty(t, c, url, queue)
}

// No acknowledgement waits for an older delivery that is still in flight. The window is full except
// for one completed message: the next is delivered only when the acknowledgement has reached the
// broker.
func TestAckWaitsForNoOlderDelivery(t *testing.T) {
	t.Parallel()
	c := open(t, brokertest.RabbitMQ(t), nil)
	queue := install(t, c, "orders")
	const window, n = 40, 100
	fill(t, c, queue, window+n)
	r := receive(t, c, queue, window)
	out := nextN(t, r, window)
	oldest := out[0]
	var worst time.Duration
	for range n {
		last := out[len(out)-1]
		out = out[:len(out)-1]
		start := time.Now()
		must(t, last.Complete(t.Context()))
		out = append(out, next(t, r))
		worst = max(worst, time.Since(start))
	}
	t.Logf("the slowest acknowledgement brought the next message after %v", worst)
	for _, d := range out {
		if d != oldest {
			must(t, d.Complete(t.Context()))
		}
	}
	must(t, oldest.Complete(t.Context()))
}

func TestADeliveryIsSettledOnce(t *testing.T) {
	t.Parallel()
	c := open(t, brokertest.RabbitMQ(t), nil)
	queue := install(t, c, "orders")
	must(t, dispatch(c, send1(queue, message("a", "x")), send1(queue, message("b", "x"))))
	r := receive(t, c, queue, 10)
	d := next(t, r)
	must(t, d.Complete(t.Context()))
	for name, again := range map[string]func(context.Context) error{"complete": d.Complete, "retry": d.Retry, "release": d.Release} {
		if err := again(t.Context()); err == nil {
			t.Errorf("%s after complete succeeded", name)
		}
	}
	// The channel has survived it.
	must(t, next(t, r).Complete(t.Context()))
}

func TestReceiveReturnsPrefetchedMessagesUpToTheLimit(t *testing.T) {
	t.Parallel()
	c := open(t, brokertest.RabbitMQ(t), nil)
	queue := install(t, c, "orders")
	fill(t, c, queue, 30)
	r := receive(t, c, queue, 30)
	first := next(t, r)
	ctx := within(t)
	seen := 1
	largest := 0
	for seen < 30 {
		ds, err := r.Receive(ctx, 7)
		if err != nil {
			t.Fatal(err)
		}
		if len(ds) == 0 || len(ds) > 7 {
			t.Fatalf("%d deliveries, want 1 to 7", len(ds))
		}
		seen += len(ds)
		largest = max(largest, len(ds))
	}
	if largest == 1 {
		t.Error("Receive never returned more than one of 30 waiting messages")
	}
	_ = first
}

func TestReceiveEndsWithItsContext(t *testing.T) {
	t.Parallel()
	c := open(t, brokertest.RabbitMQ(t), nil)
	r := receive(t, c, install(t, c, "orders"), 10)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error)
	go func() {
		_, err := r.Receive(ctx, 1)
		result <- err
	}()
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("Receive returned %v", err)
	}
}

func TestOpenReceiverFailsWithoutTheQueue(t *testing.T) {
	t.Parallel()
	c := open(t, brokertest.RabbitMQ(t), nil)
	queue := install(t, c, "orders")
	other := receive(t, c, queue, 10)
	for _, name := range []string{brokertest.Name(t, "absent"), strings.Repeat("q", 300)} {
		if _, err := c.OpenReceiver(within(t), transport.ReceiverOptions{Queue: name}); !errors.Is(err, transport.ErrNoQueue) {
			t.Errorf("queue %.20q: %v, want ErrNoQueue", name, err)
		}
	}
	// Other receivers of the connection are not disturbed.
	must(t, dispatch(c, send1(queue, message("a", "x"))))
	must(t, next(t, other).Complete(t.Context()))
}

func TestAClosedReceiverReleasesPrefetchedMessages(t *testing.T) {
	t.Parallel()
	url := brokertest.RabbitMQ(t)
	c := open(t, url, nil)
	queue := install(t, c, "orders")
	fill(t, c, queue, 20)
	r := receive(t, c, queue, 20)
	held := nextN(t, r, 5)
	must(t, r.Close())
	if _, err := r.Receive(t.Context(), 1); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("Receive after Close: %v, want ErrClosed", err)
	}
	want := 2
	if c.Limits().FreeRelease {
		want = 1
	}
	other := receive(t, c, queue, 20)
	for _, d := range nextN(t, other, 15) {
		if n := d.Attempt().N; n != want {
			t.Errorf("a message released once has attempt %d, want %d", n, want)
		}
		must(t, d.Complete(t.Context()))
	}
	for _, d := range held {
		must(t, d.Complete(t.Context()))
	}
	waitEmpty(t, c, url, queue)
}

func TestDrainReturnsPrefetchedMessages(t *testing.T) {
	t.Parallel()
	onBothTypes(t, func(t *testing.T, url string, c transport.Conn, queue string) {
		fill(t, c, queue, 30)
		r := receive(t, c, queue, 20)
		held := nextN(t, r, 5)
		settled := held[4]
		must(t, settled.Complete(t.Context()))
		waitForReady(t, c, queue, 9) // 20 of the others are on this side
		held = append(held[:4], r.(transport.Drainer).Drain(within(t), 1000)...)
		if len(held) != 20 {
			t.Fatalf("%d deliveries are held after Drain, want 20", len(held))
		}
		for i, d := range held[4:] {
			if want := fmt.Sprint("m-", i+5); d.Message().ID != want {
				t.Errorf("delivery %d is %q, want %q", i, d.Message().ID, want)
			}
		}
		for _, d := range held {
			must(t, d.Complete(t.Context()))
		}
		must(t, r.Close())
		for _, d := range nextN(t, receive(t, c, queue, 20), 9) {
			if n := d.Attempt().N; n != 1 {
				t.Errorf("%q, which was never sent to the first receiver, comes as attempt %d", d.Message().ID, n)
			}
			must(t, d.Complete(t.Context()))
		}
		waitEmpty(t, c, url, queue)
	})
}

func TestDrainEndsWithTheConnection(t *testing.T) {
	t.Parallel()
	url := brokertest.RabbitMQ(t)
	proxy := newProxy(t, url)
	c := open(t, proxy.URL(t, url), nil)
	queue := install(t, c, "orders")
	fill(t, c, queue, 5)
	r := receive(t, c, queue, 5)
	held := nextN(t, r, 1)
	proxy.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_ = r.(transport.Drainer).Drain(ctx, 1000) // has to return
	proxy.Cut()
	proxy.Resume()
	if ds := r.(transport.Drainer).Drain(within(t), 1000); len(ds) != 0 {
		t.Errorf("%d deliveries after the connection was lost", len(ds))
	}
	if err := held[0].Complete(within(t)); !errors.Is(err, transport.ErrLeaseLost) {
		t.Errorf("Complete: %v, want ErrLeaseLost", err)
	}
}

func TestTheReceiverResumesWhenItsQueueIsCreatedAgain(t *testing.T) {
	t.Parallel()
	url := brokertest.RabbitMQ(t)
	c := open(t, url, nil)
	queue := install(t, c, "orders")
	r := receive(t, c, queue, 10)
	raw := rawChannel(t, url)
	if _, err := raw.QueueDelete(queue, false, false, false); err != nil {
		t.Fatal(err)
	}
	ctx := within(t)
	for { // first that the consumer is gone, then that there is no queue
		_, err := r.Receive(ctx, 1)
		if errors.Is(err, transport.ErrNoQueue) {
			break
		}
		if err == nil || ctx.Err() != nil {
			t.Fatalf("Receive from a deleted queue: %v, want ErrNoQueue", err)
		}
	}
	must(t, c.(transport.Installer).Install(ctx, transport.Plan{Queues: []transport.Queue{{Name: queue}}}))
	must(t, dispatch(c, send1(queue, message("a", "x"))))
	must(t, next(t, r).Complete(t.Context()))
}

// rawChannel is a channel of another client.
func rawChannel(t *testing.T, url string) *amqp.Channel {
	t.Helper()
	c, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	ch, err := c.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

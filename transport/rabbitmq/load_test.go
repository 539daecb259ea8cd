package rabbitmq_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

// HOLDFAST_SOAK=1 makes the load tests long.
func soak() bool { return os.Getenv("HOLDFAST_SOAK") != "" }

// While all messages are received, sent on and completed, the connections are cut again and again:
// no message is lost, and some are sent twice.
func TestNothingIsLostWhenConnectionsAreCutUnderLoad(t *testing.T) {
	t.Parallel()
	for _, queueType := range []rabbitmq.QueueType{rabbitmq.Quorum, rabbitmq.Classic} {
		t.Run(string(queueType), func(t *testing.T) {
			// Connections last longer than the pauses between them, which grow otherwise.
			cuts, every := 10, 400
			if soak() {
				cuts, every = 100, 1500 // of each type
			}
			broker := brokertest.RabbitMQ(t)
			proxy := newProxy(t, broker)
			l := &load{
				conn:  open(t, proxy.URL(t, broker), func(tr *rabbitmq.Transport) { tr.QueueType = queueType }),
				proxy: proxy,
				every: every,
				total: every * cuts,
			}
			direct := open(t, broker, func(tr *rabbitmq.Transport) { tr.QueueType = queueType })
			l.in, l.out = install(t, direct, "in"), install(t, direct, "out")
			fill(t, direct, l.in, l.total)
			l.run(t)
			l.check(t, direct)
		})
	}
}

type load struct {
	conn    transport.Conn
	proxy   *brokertest.Proxy
	in, out string
	total   int // messages
	every   int // messages between cuts

	done      sync.Map // ids sent on
	completed atomic.Int64
	fenced    atomic.Int64
}

func (l *load) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	r := receive(t, l.conn, l.in, 60)
	work := make(chan transport.Delivery)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			for d := range work {
				if l.handle(ctx, d) {
					cancel()
				}
			}
		})
	}
	pause := backoff.Backoff{Min: 5 * time.Millisecond, Max: 50 * time.Millisecond}
	for ctx.Err() == nil {
		ds, err := r.Receive(ctx, 20)
		if err != nil {
			_ = pause.Wait(ctx) // ctx is looked at next
			continue
		}
		pause.Reset()
		for _, d := range ds {
			work <- d
		}
	}
	close(work)
	wg.Wait()
	if n := l.completed.Load(); int(n) < l.total {
		t.Errorf("%d of %d completed", n, l.total)
	}
	t.Logf("%d completed, %d settles refused after a cut, %d connections", l.completed.Load(), l.fenced.Load(), l.proxy.Connections())
}

// handle reports whether it was the last message. A message that was sent on is done: where its
// completion failed after a cut, it may be redelivered or recognised.
func (l *load) handle(ctx context.Context, d transport.Delivery) bool {
	m := message(d.Message().ID, "sent on")
	if _, err := l.conn.Dispatch(context.WithoutCancel(ctx), []transport.Operation{send1(l.out, m)}); err != nil {
		_ = d.Retry(ctx) // it is redelivered in any case
		return false
	}
	if err := d.Complete(ctx); err != nil {
		l.fenced.Add(1)
	}
	if _, again := l.done.LoadOrStore(m.ID, true); again {
		return false
	}
	n := int(l.completed.Add(1))
	if n%l.every == 0 {
		l.proxy.Cut()
	}
	return n == l.total
}

func (l *load) check(t *testing.T, direct transport.Conn) {
	t.Helper()
	must(t, l.conn.Close())
	seen := make(map[string]int)
	r := receive(t, direct, l.out, 1000)
	for len(seen) < l.total {
		d := next(t, r)
		seen[d.Message().ID]++
		must(t, d.Complete(t.Context()))
	}
	for i := range l.total {
		if seen[fmt.Sprint("m-", i)] == 0 {
			t.Errorf("message %d is lost", i)
		}
	}
}

package transporttest

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// Benchmark measures a driver under the endpoint's receive loop, in messages per second: sent, one
// and a hundred at a time; handled and completed, one and 32 at once; and moved to another queue,
// as one unit if the driver can.
func Benchmark(b *testing.B, h Harness) {
	measure := func(name string, f func(b *testing.B, t *test)) {
		b.Run(name, func(b *testing.B) {
			t := newTest(b, h)
			t.until = time.Now().Add(time.Hour) // no time limit
			f(b, t)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
		})
	}
	for _, n := range []int{1, 100} {
		measure(fmt.Sprintf("send/%d", n), func(b *testing.B, t *test) { benchmarkSend(b, t, n) })
	}
	for _, n := range []int{1, 32} {
		measure(fmt.Sprintf("handle/%d", n), func(b *testing.B, t *test) { benchmarkHandle(b, t, n, false) })
	}
	measure("move/32", func(b *testing.B, t *test) { benchmarkHandle(b, t, 32, true) })
}

func benchmarkSend(b *testing.B, t *test, batch int) {
	c, q := t.queueOf(t.open())
	ops := toAll(q, ids("m", batch))
	ctx := t.ctx()
	b.ResetTimer()
	for left := b.N; left > 0; left -= batch {
		t.must("Dispatch", dispatch(ctx, c, ops[:min(batch, left)]...))
	}
	b.StopTimer()
}

func benchmarkHandle(b *testing.B, t *test, concurrency int, moves bool) {
	c := t.open()
	in, out := t.queue(c, "in"), t.queue(c, "out")
	for some := range slices.Chunk(ids("m", b.N), 500) {
		t.send(c, in, some...)
	}
	var left atomic.Int64
	left.Store(int64(b.N))
	all := make(chan struct{})
	b.ResetTimer()
	p := t.pump(c, in, concurrency, -1, func(_ context.Context, d transport.Delivery) func(context.Context) error {
		return func(ctx context.Context) (err error) {
			if moves {
				err = move(ctx, c, d, []transport.Operation{{Message: d.Message(), Queue: out}})
			} else {
				err = d.Complete(ctx)
			}
			if left.Add(-1) == 0 {
				close(all)
			}
			return err
		}
	})
	await(t, "all are handled", all)
	b.StopTimer()
	t.stop(p)
}

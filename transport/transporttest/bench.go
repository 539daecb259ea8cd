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

// Benchmark measures a driver under the endpoint's receive loop, in messages per second: sent, one and a hundred at a
// time; handled and completed, one and 32 at once; and moved to another queue, as one unit if the driver can.
func Benchmark(b *testing.B, h Harness) {
	for _, n := range []int{1, 100} {
		b.Run(fmt.Sprintf("send/%d", n), func(b *testing.B) { benchmarkSend(newBench(b, h), n) })
	}
	for _, n := range []int{1, 32} {
		b.Run(fmt.Sprintf("handle/%d", n), func(b *testing.B) { benchmarkHandle(newBench(b, h), n, false) })
	}
	b.Run("move/32", func(b *testing.B) { benchmarkHandle(newBench(b, h), 32, true) })
}

// newBench returns a test without a time limit.
func newBench(b *testing.B, h Harness) *bench {
	b.Helper()
	t := newTest(b, h)
	t.until = time.Now().Add(time.Hour)
	return &bench{test: t, b: b}
}

type bench struct {
	*test
	b *testing.B
}

func (t *bench) perSecond() {
	t.b.ReportMetric(float64(t.b.N)/t.b.Elapsed().Seconds(), "msg/s")
}

func benchmarkSend(t *bench, batch int) {
	c := t.open()
	ops := toAll(t.queue(c, "out"), ids("m", batch))
	ctx := t.ctx()
	t.b.ResetTimer()
	for left := t.b.N; left > 0; left -= batch {
		if _, err := c.Dispatch(ctx, ops[:min(batch, left)]); err != nil {
			t.Fatalf("Dispatch: %v", err)
		}
	}
	t.b.StopTimer()
	t.perSecond()
}

func benchmarkHandle(t *bench, concurrency int, moves bool) {
	c := t.open()
	in, out := t.queue(c, "in"), t.queue(c, "out")
	for some := range slices.Chunk(ids("m", t.b.N), 500) {
		t.send(c, in, some...)
	}
	var left atomic.Int64
	left.Store(int64(t.b.N))
	all := make(chan struct{})
	t.b.ResetTimer()
	p := t.pump(c, in, concurrency, -1, func(_ context.Context, d transport.Delivery) func(context.Context) error {
		return func(ctx context.Context) error {
			err := settleOrMove(ctx, c, d, out, moves)
			if left.Add(-1) == 0 {
				close(all)
			}
			return err
		}
	})
	await(t.test, "all are handled", all)
	t.b.StopTimer()
	t.perSecond()
	t.stop(p)
}

func settleOrMove(ctx context.Context, c transport.Conn, d transport.Delivery, out string, moves bool) error {
	if !moves {
		return d.Complete(ctx)
	}
	return move(ctx, c, d, []transport.Operation{{Message: d.Message(), Queue: out}})
}

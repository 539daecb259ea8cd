package rabbitmq_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
)

// BenchmarkLoop receives one, sends one and completes, with 14 headers and 200 bytes.
func BenchmarkLoop(b *testing.B) {
	for _, workers := range []int{1, 32, 100} {
		b.Run(fmt.Sprintf("c%d", workers), func(b *testing.B) { benchmarkLoop(b, workers, true) })
	}
}

// BenchmarkReceive completes without sending.
func BenchmarkReceive(b *testing.B) {
	b.Run("c32", func(b *testing.B) { benchmarkLoop(b, 32, false) })
}

func benchmarkLoop(b *testing.B, workers int, send bool) {
	c := open(b, brokertest.RabbitMQ(b), nil)
	in, out := install(b, c, "in"), install(b, c, "out")
	fill(b, c, in, b.N)
	r := receive(b, c, in, max(3*workers, 30))
	var left atomic.Int64
	left.Store(int64(b.N))
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	work := make(chan transport.Delivery, workers)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for d := range work {
				if send {
					must(b, dispatch(c, send1(out, sample(200))))
				}
				must(b, d.Complete(context.Background()))
				if left.Add(-1) == 0 {
					cancel()
				}
			}
		})
	}
	b.ReportAllocs()
	b.ResetTimer()
	for {
		ds, err := r.Receive(ctx, 100)
		if err != nil {
			break
		}
		for _, d := range ds {
			work <- d
		}
	}
	close(work)
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}

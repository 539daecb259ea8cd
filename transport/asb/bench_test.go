package asb_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
)

// BenchmarkLoop receives one, sends one and completes, with 14 headers and 200 bytes: with the
// driver, and with the library alone.
func BenchmarkLoop(b *testing.B) {
	for _, workers := range []int{1, 32, 100} {
		b.Run(fmt.Sprintf("driver/c%d", workers), func(b *testing.B) { benchmarkDriver(b, workers, true) })
		b.Run(fmt.Sprintf("raw/c%d", workers), func(b *testing.B) { benchmarkRaw(b, workers, true) })
	}
}

// BenchmarkReceive completes without sending.
func BenchmarkReceive(b *testing.B) {
	b.Run("driver/c32", func(b *testing.B) { benchmarkDriver(b, 32, false) })
	b.Run("raw/c32", func(b *testing.B) { benchmarkRaw(b, 32, false) })
}

// crew handles messages until all are handled.
func crew[T any](b *testing.B, workers int, receive func(context.Context) ([]T, error), handle func(T)) {
	b.Helper()
	var left atomic.Int64
	left.Store(int64(b.N))
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	work := make(chan T, workers)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for m := range work {
				handle(m)
				if left.Add(-1) == 0 {
					cancel()
				}
			}
		})
	}
	b.ReportAllocs()
	b.ResetTimer()
	for ctx.Err() == nil {
		ms, err := receive(ctx)
		if err != nil && ctx.Err() == nil {
			b.Error(err)
		}
		for _, m := range ms {
			work <- m
		}
	}
	close(work)
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}

var warmed sync.Once

// warmUp makes the broker compile its code, which otherwise halves the speed of the first
// benchmark.
func warmUp(b *testing.B) {
	b.Helper()
	c := open(b, on(brokertest.OwnServiceBus(b)))
	install(b, c, "in", "out")
	const n = 5000
	fill(b, c, "in", n)
	r := receive(b, c, "in")
	for got := 0; got < n; {
		ds, err := r.Receive(b.Context(), 32)
		must(b, err)
		got += len(ds)
		for _, d := range ds {
			dispatch(b, c, transport.Operation{Queue: "out", Message: sample(200)})
			must(b, d.Complete(b.Context()))
		}
	}
}

func benchmarkDriver(b *testing.B, workers int, send bool) {
	warmed.Do(func() { warmUp(b) })
	c := open(b, on(brokertest.OwnServiceBus(b)))
	install(b, c, "in", "out")
	fill(b, c, "in", b.N)
	r := receive(b, c, "in")
	crew(b, workers, func(ctx context.Context) ([]transport.Delivery, error) { return r.Receive(ctx, 2*workers) }, func(d transport.Delivery) {
		if send {
			_, err := c.Dispatch(context.Background(), []transport.Operation{{Queue: "out", Message: sample(200)}})
			must(b, err)
		}
		must(b, d.Complete(context.Background()))
	})
}

func benchmarkRaw(b *testing.B, workers int, send bool) {
	warmed.Do(func() { warmUp(b) })
	ns := brokertest.OwnServiceBus(b)
	c := open(b, on(ns))
	install(b, c, "in", "out")
	fill(b, c, "in", b.N)
	raw := rawClient(b, ns)
	sender, err := raw.NewSender("out", nil)
	must(b, err)
	r, err := raw.NewReceiverForQueue("in", nil)
	must(b, err)
	receive := func(ctx context.Context) ([]*azservicebus.ReceivedMessage, error) {
		return r.ReceiveMessages(ctx, 2*workers, nil)
	}
	crew(b, workers, receive, func(m *azservicebus.ReceivedMessage) {
		if send {
			must(b, sender.SendMessage(context.Background(), rawSample(200), nil))
		}
		must(b, r.CompleteMessage(context.Background(), m, nil))
	})
}

// rawSample returns sample as a message of the library.
func rawSample(size int) *azservicebus.Message {
	properties := make(map[string]any, len(sampleHeaders)+1)
	properties["NServiceBus.MessageId"] = "6f1d4c2e-6a53-4a3f-9d3e-0b8b1f8a7c11"
	for _, f := range sampleHeaders {
		properties[f[0]] = f[1]
	}
	return &azservicebus.Message{
		MessageID: new("6f1d4c2e-6a53-4a3f-9d3e-0b8b1f8a7c11"), CorrelationID: new("6f1d4c2e-6a53-4a3f-9d3e-0b8b1f8a7c11"),
		ReplyTo: new("sales"), ContentType: new("application/json"), ApplicationProperties: properties, Body: make([]byte, size),
	}
}

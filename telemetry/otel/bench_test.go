package otel_test

import (
	"context"
	"sync"
	"testing"

	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/telemetry/otel"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// What telemetry costs a message that is sent and handled: nothing, metrics alone, and with
// every trace sampled.
func BenchmarkMessage(b *testing.B) {
	metrics := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))
	b.Run("without", func(b *testing.B) { benchmark(b, func(*endpoint.Config) {}) })
	b.Run("metrics", func(b *testing.B) {
		traces := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))
		benchmark(b, func(cfg *endpoint.Config) {
			otel.Instrument(cfg, otel.Options{TracerProvider: traces, MeterProvider: metrics})
		})
	})
	b.Run("traces", func(b *testing.B) {
		benchmark(b, func(cfg *endpoint.Config) {
			otel.Instrument(cfg, otel.Options{TracerProvider: sdktrace.NewTracerProvider(), MeterProvider: noop.NewMeterProvider()})
		})
	})
}

func benchmark(b *testing.B, instrument func(*endpoint.Config)) {
	var handled sync.WaitGroup
	cfg := harness.Sales(&inmemory.Transport{}, endpoint.Handle(func(context.Context, *endpoint.Session, harness.PlaceOrder) error {
		handled.Done()
		return nil
	}))
	instrument(&cfg)
	ep, err := endpoint.New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- ep.Run(ctx) }()
	if err := ep.WaitReady(ctx); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		handled.Add(1)
		if err := ep.Send(ctx, harness.PlaceOrder{ID: "1"}); err != nil {
			b.Fatal(err)
		}
	}
	handled.Wait()
	b.StopTimer()
	stop()
	if err := <-ended; err != nil {
		b.Error(err)
	}
}

package otel_test

import (
	"context"
	"fmt"
	"slices"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/telemetry/otel"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

type Greet struct{ Name string }

func Example() {
	// Exporters of your choice, such as those for OTLP, stand where these are.
	spans := tracetest.NewInMemoryExporter()
	traces := trace.NewTracerProvider(trace.WithSyncer(spans))
	metrics := metric.NewMeterProvider(metric.WithReader(metric.NewManualReader()))

	ctx, stop := context.WithCancel(context.Background())
	g := greeter{greeted: make(chan string)}
	cfg := endpoint.Config{
		Name: "greeter", Install: true,
		Transport: &inmemory.Transport{},
		Messages:  []endpoint.Message{endpoint.Command[Greet]("Demo.Greet").To("greeter")},
		Handlers:  []endpoint.Handler{endpoint.Handle(g.Greet)},
	}
	otel.Instrument(&cfg, otel.Options{TracerProvider: traces, MeterProvider: metrics})

	ep, err := endpoint.New(cfg)
	if err != nil {
		panic(err)
	}
	go func() {
		if ep.WaitReady(ctx) != nil {
			return // Run returns the error
		}
		if err := ep.Send(ctx, Greet{Name: "Ada"}); err != nil {
			panic(err)
		}
		fmt.Println("greeted", <-g.greeted)
		stop()
	}()
	if err := ep.Run(ctx); err != nil { // returns when the handler is done
		panic(err)
	}

	var names []string
	for _, span := range spans.GetSpans() {
		names = append(names, span.Name)
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		fmt.Println(name)
	}
	// Output:
	// greeted Ada
	// complete greeter
	// dispatch
	// otel_test.greeter.Greet
	// process greeter
	// send greeter
}

type greeter struct{ greeted chan string }

func (g greeter) Greet(_ context.Context, _ *endpoint.Session, m Greet) error {
	g.greeted <- m.Name
	return nil
}

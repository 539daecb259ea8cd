package otel_test

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/holdfast-go/holdfast/resilience"
	"github.com/holdfast-go/holdfast/telemetry/otel"
)

// A runner with the observer reports each call by a policy as a span, with an event for each retry.
func ExampleNewObserver() {
	spans := tracetest.NewInMemoryExporter()
	traces := trace.NewTracerProvider(trace.WithSyncer(spans))
	catalog, err := resilience.NewCatalog(resilience.Policy{Name: "prices", Retry: resilience.Retry{Delay: resilience.None}})
	if err != nil {
		panic(err)
	}
	runner := resilience.NewRunner(catalog, otel.NewObserver(otel.Options{TracerProvider: traces}))

	err = runner.Run(context.Background(), "prices", func(ctx context.Context) error {
		if n, _ := resilience.Attempt(ctx); n == 1 {
			return errors.New("the service is away")
		}
		return nil
	})
	fmt.Println("error:", err)
	for _, span := range spans.GetSpans() {
		fmt.Println(span.Name)
		for _, event := range span.Events {
			fmt.Println("-", event.Name)
		}
	}
	// Output:
	// error: <nil>
	// resilience prices
	// - resilience retry
}

package otel

import (
	"context"
	"errors"
	"time"

	api "go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/pipeline"
)

// relay makes a span for each dispatch of messages of the outbox. It links to the spans in which
// they were sent, whose traces may have ended long before.
func (in *instrumentation) relay(next pipeline.Func[*pipeline.Relay]) pipeline.Func[*pipeline.Relay] {
	return func(ctx context.Context, r *pipeline.Relay) (err error) {
		ctx, span := in.startSending(ctx, operationRelay, semconv.MessagingOperationTypeSend, operationRelay, r.Operations)
		began := time.Now()
		err = errPanicked
		defer func() {
			of := label{operation: operationRelay, errorType: errorType(err)}
			in.metrics.requests.Record(ctx, time.Since(began).Seconds(), in.metrics.labels.of(of).record...)
			end(span, err)
		}()
		return next(ctx, r)
	}
}

// observeOutbox observes the counts of the endpoint's outbox while it runs.
func (in *instrumentation) observeOutbox(ctx context.Context, e *endpoint.Endpoint) {
	meter := in.metrics.meter
	var errs [4]error
	counter := func(i int, name, text string) (c metric.Int64ObservableCounter) {
		c, errs[i] = meter.Int64ObservableCounter(name, metric.WithUnit("{message}"), metric.WithDescription(text))
		return c
	}
	sent := counter(0, "holdfast.outbox.sent", "Messages that were sent from the outbox.")
	refused := counter(1, "holdfast.outbox.refused", "Messages of the outbox that the broker refused and that moved to the error queue.")
	duplicates := counter(2, "holdfast.inbox.duplicates", "Received messages that were handled before.")
	labels := metric.WithAttributeSet(in.metrics.labels.set())
	var registered metric.Registration
	registered, errs[3] = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		if h := e.Health().Outbox; h != nil {
			o.ObserveInt64(sent, h.Sent, labels)
			o.ObserveInt64(refused, h.Refused, labels)
			o.ObserveInt64(duplicates, h.Duplicates, labels)
		}
		return nil
	}, sent, refused, duplicates)
	if err := errors.Join(errs[:]...); err != nil {
		api.Handle(err)
		return
	}
	<-ctx.Done()
	if err := registered.Unregister(); err != nil {
		api.Handle(err)
	}
}

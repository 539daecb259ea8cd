package otel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	api "go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// Options configures the telemetry of an endpoint. The zero value uses OpenTelemetry's global
// providers.
type Options struct {
	// TracerProvider and MeterProvider create the tracer and the meter. Default: the global
	// providers.
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider
	// Propagator writes trace context into headers and reads it from them. Default: the global
	// propagator if it is set when Instrument is called, otherwise W3C trace context and baggage.
	Propagator propagation.TextMapPropagator
	// System is the value of messaging.system. Default: that of the transport, such as "rabbitmq".
	System string
}

// Instrument adds tracing and measuring behaviors to cfg.Pipeline, outside of all others, and a
// function to cfg.Notify. It wraps cfg.Transport and cfg.Outbox to observe their queues where the
// driver is a [transport.Inspector]. It is called once, when the rest of cfg is complete, before
// endpoint.New. Providers may be set or shut down at any time; their errors are reported to
// OpenTelemetry's error handler.
func Instrument(cfg *endpoint.Config, opts Options) {
	in, p := newInstrumentation(cfg, opts), &cfg.Pipeline
	outermost(&p.Receive, in.receive)
	outermost(&p.Logical, in.logical)
	outermost(&p.Invoke, in.invoke)
	outermost(&p.Outgoing, in.outgoing)
	outermost(&p.Dispatch, in.dispatch)
	outermost(&p.Recover, in.recover)
	outermost(&p.Relay, in.relay)
	cfg.Notify = append([]func(context.Context, recoverability.Notification){in.notified}, cfg.Notify...)
	if cfg.Transport != nil && !cfg.SendOnly {
		cfg.Transport = in.observe(cfg.Transport, in.metrics.labels, cfg.Name, cfg.Recoverability.WithDefaults().ErrorQueue)
	}
	if cfg.Outbox != nil {
		cfg.Outbox = in.observe(cfg.Outbox, newLabels(cfg.Name, systemOf(cfg.Outbox)), cfg.Name+".outbox")
		cfg.Background = append(cfg.Background, in.observeOutbox)
	}
}

// behavior is the name of this package's behavior in each stage.
const behavior = "otel"

func outermost[T any](s *pipeline.Stage[T], b pipeline.Behavior[T]) {
	if names := s.Names(); len(names) > 0 {
		s.Before(names[0], behavior, b)
		return
	}
	s.Use(behavior, b)
}

// instrumentation is the shared state of the behaviors of one endpoint.
type instrumentation struct {
	tracer     trace.Tracer
	propagator propagation.TextMapPropagator
	metrics    *metrics
	sagas      *sagas
	endpoint   string
	system     string
}

const scope = module + "/telemetry/otel"

func newInstrumentation(cfg *endpoint.Config, opts Options) *instrumentation {
	if opts.Propagator == nil {
		opts.Propagator = defaultPropagator()
	}
	system := cmp.Or(opts.System, systemOf(cfg.Transport))
	tracer, meter := opts.instruments()
	ms := newMetrics(meter, cfg.Name, system)
	return &instrumentation{
		tracer:     tracer,
		propagator: opts.Propagator,
		metrics:    ms,
		sagas:      newSagas(meter, ms.labels),
		endpoint:   cfg.Name,
		system:     system,
	}
}

// instruments returns a tracer and a meter of the providers.
func (o Options) instruments() (trace.Tracer, metric.Meter) {
	tracers, meters := o.TracerProvider, o.MeterProvider
	if tracers == nil {
		tracers = api.GetTracerProvider()
	}
	if meters == nil {
		meters = api.GetMeterProvider()
	}
	return tracers.Tracer(scope, trace.WithInstrumentationVersion(version()), trace.WithSchemaURL(semconv.SchemaURL)),
		meters.Meter(scope, metric.WithInstrumentationVersion(version()), metric.WithSchemaURL(semconv.SchemaURL))
}

// defaultPropagator returns the global propagator, which has no fields unless it was set.
func defaultPropagator() propagation.TextMapPropagator {
	if p := api.GetTextMapPropagator(); len(p.Fields()) > 0 {
		return p
	}
	return propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})
}

// systemOf returns the name of the broker behind t, or the name of t's package where the driver has
// none.
func systemOf(t transport.Transport) string {
	if d, ok := t.(transport.Describer); ok {
		return d.System()
	}
	pkg, _, _ := strings.Cut(strings.TrimPrefix(fmt.Sprintf("%T", t), "*"), ".")
	return pkg
}

// observe registers the gauges of queues, which observe nothing while no connection of t is open.
func (in *instrumentation) observe(
	t transport.Transport, l *labels, queues ...string,
) transport.Transport {
	g := &queueGauges{queues: queues, labels: l}
	meter := in.metrics.meter
	var errs [3]error
	g.messages, errs[0] = meter.Int64ObservableGauge("holdfast.queue.messages",
		metric.WithUnit("{message}"), metric.WithDescription("Messages in a queue."))
	g.oldest, errs[1] = meter.Float64ObservableGauge("holdfast.queue.oldest_age",
		metric.WithUnit("s"), metric.WithDescription("Age of the oldest message that waits to be received; 0 if none does."))
	_, errs[2] = meter.RegisterCallback(g.collect, g.messages, g.oldest)
	if err := errors.Join(errs[:]...); err != nil {
		api.Handle(err)
	}
	return observed{t, g}
}

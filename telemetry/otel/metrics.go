package otel

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	api "go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport"
)

// metrics are the instruments of an endpoint.
type metrics struct {
	labels *labels
	known  sync.Map // of string: the types that were sent

	meter metric.Meter

	processed, handlers, critical, requests                metric.Float64Histogram
	fetches, sent, successes, failures, actions, fallbacks metric.Int64Counter
	limits                                                 metric.Int64UpDownCounter
}

// Bounds of buckets, in seconds: those of OpenTelemetry's conventions, and wider ones for times
// that include a wait in a queue.
var (
	workTimes = []float64{0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10}
	waitTimes = []float64{0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600, 24 * 3600}
)

func newMetrics(meter metric.Meter, endpoint, system string) *metrics {
	m := &metrics{meter: meter, labels: newLabels(endpoint, system)}
	var errs []error
	seconds := func(name, description string, bounds []float64) metric.Float64Histogram {
		h, err := meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description),
			metric.WithExplicitBucketBoundaries(bounds...))
		errs = append(errs, err)
		return h
	}
	count := func(name, description string) metric.Int64Counter {
		c, err := meter.Int64Counter(name, metric.WithUnit("{message}"), metric.WithDescription(description))
		errs = append(errs, err)
		return c
	}
	m.processed = seconds("messaging.process.duration", "Time from the receipt of a message until it is settled or fails.", workTimes)
	m.handlers = seconds("holdfast.handler.duration", "Time of a handler call.", workTimes)
	m.critical = seconds("holdfast.critical_time", "Time from the sending of a message, or from its due time, until it is processed.", waitTimes)
	m.requests = seconds("messaging.client.operation.duration", "Time to dispatch messages, and to complete the handled one.", workTimes)
	m.fetches = count("messaging.client.consumed.messages", "Messages delivered to the endpoint, with every attempt.")
	m.sent = count("messaging.client.sent.messages", "Messages that were sent, published or replied.")
	m.successes = count("holdfast.messages.succeeded", "Messages that were processed and settled.")
	m.failures = count("holdfast.messages.failed", "Failed attempts.")
	m.actions = count("holdfast.recoverability.actions", "Actions for failed messages.")
	m.fallbacks = count("holdfast.recoverability.fallbacks", "Fallbacks for failed messages whose action could not be carried out.")
	var err error
	m.limits, err = meter.Int64UpDownCounter("holdfast.rate_limits", metric.WithUnit("{limit}"),
		metric.WithDescription("Rate limits in force: one message at a time is attempted."))
	if err := errors.Join(append(errs, err)...); err != nil {
		api.Handle(err)
	}
	return m
}

func (m *metrics) fetched(ctx context.Context, queue string) {
	m.fetches.Add(ctx, 1, m.labels.of(label{operation: operationReceive, destination: queue}).add...)
}

func (m *metrics) succeeded(ctx context.Context, a *attempt, r *pipeline.Receive) {
	l := m.labels.of(label{operation: operationProcess, destination: r.Queue, message: a.message})
	now := time.Now()
	m.successes.Add(ctx, 1, l.add...)
	m.processed.Record(ctx, now.Sub(a.began).Seconds(), l.record...)
	if since, ok := due(r.Message.Headers); ok {
		m.critical.Record(ctx, max(0, now.Sub(since)).Seconds(), l.record...)
	}
}

// due returns the earliest time at which a message could be handled, by its sender's clock.
func due(h header.Map) (time.Time, bool) {
	if t, err := header.ParseTime(h.Get(header.DeliverAt)); err == nil {
		return t, true
	}
	t, err := header.ParseTime(h.Get(header.TimeSent))
	return t, err == nil
}

func (m *metrics) failed(ctx context.Context, a *attempt, queue, errorType string) {
	l := m.labels.of(label{operation: operationProcess, destination: queue, message: a.message, errorType: errorType})
	m.failures.Add(ctx, 1, l.add...)
	m.processed.Record(ctx, time.Since(a.began).Seconds(), l.record...)
}

// dispatched counts each operation, because some may have been sent and others not.
func (m *metrics) dispatched(
	ctx context.Context, d *pipeline.Dispatch, operation string, took time.Duration, err error,
) {
	of := label{operation: operation, errorType: errorType(err)}
	m.requests.Record(ctx, took.Seconds(), m.labels.of(of).record...)
	for i := range d.Operations {
		l := m.labelOf(&d.Operations[i])
		l.errorType = errorType(errorOf(err, i, d.Incoming != nil))
		m.sent.Add(ctx, 1, m.labels.of(l).add...)
	}
}

// labelOf returns the label of an operation. It uses only known types of its headers: behaviors may
// send copies of foreign messages.
func (m *metrics) labelOf(op *transport.Operation) label {
	h := &op.Message.Headers
	intent := h.Get(header.MessageIntent)
	l := label{operation: operationSend, destination: destination(intent, op.Queue, op.Types)}
	if intent == header.IntentPublish || intent == header.IntentReply {
		l.operation = strings.ToLower(intent)
	}
	for name := range header.TypeNames(h.Get(header.EnclosedMessageTypes)) {
		if _, ok := m.known.Load(name); ok {
			l.message = name
		}
		break
	}
	return l
}

// errorOf returns the error of operation i in a dispatch that returned err. Operations that are
// sent together with a completed message fail together.
func errorOf(err error, i int, together bool) error {
	partial, ok := err.(*transport.DispatchError) //nolint:errorlint // a wrapped one is not of these operations
	if !ok {
		return err
	}
	for _, op := range partial.Ops {
		if op.Index == i {
			return op.Err
		}
	}
	if together {
		return err
	}
	return nil
}

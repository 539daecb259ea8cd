package otel

import (
	"context"
	"errors"
	"strings"
	"time"

	api "go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport"
)

// outgoing makes a span for each sent message, and writes its context into the headers.
func (in *instrumentation) outgoing(
	next pipeline.Func[*pipeline.Outgoing],
) pipeline.Func[*pipeline.Outgoing] {
	return func(ctx context.Context, out *pipeline.Outgoing) (err error) {
		operation := strings.ToLower(out.Intent)
		name := strings.TrimSpace(operation + " " + destination(out.Intent, out.Queue, out.Types))
		ctx, span := in.tracer.Start(ctx, name,
			trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(in.sending(operation, out)...))
		in.inject(ctx, out)
		if len(out.Types) > 0 {
			in.metrics.known.LoadOrStore(out.Types[0], true)
		}
		err = errPanicked
		defer func() {
			if m := out.Operation.Message; m != nil && span.IsRecording() {
				span.SetAttributes(
					semconv.MessagingMessageBodySize(len(m.Body)),
					semconv.MessagingMessageConversationID(m.Headers.Get(header.ConversationID)))
			}
			end(span, err)
		}()
		return next(ctx, out)
	}
}

// inject writes the trace context, and asks for a new trace if the message is not handled as part
// of this request.
func (in *instrumentation) inject(ctx context.Context, out *pipeline.Outgoing) {
	in.propagator.Inject(ctx, carrier{&out.Headers})
	apart := out.Intent == header.IntentPublish || out.After > 0 || !out.At.IsZero()
	if apart && trace.SpanContextFromContext(ctx).IsValid() {
		out.Headers.SetDefault(startNewTrace, yes)
	}
}

func (in *instrumentation) sending(operation string, out *pipeline.Outgoing) []attribute.KeyValue {
	attrs := []attribute.KeyValue{
		semconv.MessagingSystemKey.String(in.system), keyEndpoint.String(in.endpoint),
		semconv.MessagingOperationName(operation), semconv.MessagingOperationTypeCreate,
		semconv.MessagingDestinationName(destination("", out.Queue, out.Types)),
		semconv.MessagingMessageID(out.MessageID),
	}
	if len(out.Types) > 0 {
		attrs = append(attrs, keyMessageType.String(out.Types[0]))
	}
	return attrs
}

// destination returns the destination of a message by a name of low cardinality: a queue, or the
// type of a published message. The queue of a reply is chosen by the other side: it is "".
func destination(intent, queue string, types []string) string {
	switch {
	case intent == header.IntentReply:
		return ""
	case queue == "" && len(types) > 0:
		return types[0]
	}
	return queue
}

// dispatch measures the dispatch of messages and the completion of the handled one.
func (in *instrumentation) dispatch(
	next pipeline.Func[*pipeline.Dispatch],
) pipeline.Func[*pipeline.Dispatch] {
	return func(ctx context.Context, d *pipeline.Dispatch) (err error) {
		a := attemptOf(d.Incoming)
		if a != nil {
			ctx = trace.ContextWithSpan(ctx, a.span)
		}
		operation := operationDispatch
		if len(d.Operations) == 0 {
			operation = operationComplete
		}
		ctx, span := in.startDispatch(ctx, operation, d)
		began := time.Now()
		err = errPanicked
		defer func() {
			in.metrics.dispatched(ctx, d, operation, time.Since(began), err)
			if d.Incoming != nil {
				in.sagas.handled(ctx, d.Incoming, err)
			}
			end(span, err)
			switch {
			case a == nil:
			case err == nil:
				in.metrics.succeeded(ctx, a, d.Incoming)
				a.end()
			default:
				in.interrupted(ctx, a, err)
			}
		}()
		return next(ctx, d)
	}
}

func (in *instrumentation) startDispatch(
	ctx context.Context, operation string, d *pipeline.Dispatch,
) (context.Context, trace.Span) {
	name, kind := operation, semconv.MessagingOperationTypeSend
	if operation == operationComplete {
		kind = semconv.MessagingOperationTypeSettle
		if d.Incoming != nil {
			name += " " + d.Incoming.Queue
		}
	}
	return in.startSending(ctx, operation, kind, name, d.Operations)
}

// startSending starts the span of a dispatch. It links to the spans of the messages.
func (in *instrumentation) startSending(
	ctx context.Context, operation string, kind attribute.KeyValue, name string, ops []transport.Operation,
) (context.Context, trace.Span) {
	ctx, span := in.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		semconv.MessagingSystemKey.String(in.system), semconv.MessagingOperationName(operation), kind,
		keyEndpoint.String(in.endpoint)))
	if !span.IsRecording() {
		return ctx, span
	}
	if n := len(ops); n > 1 {
		span.SetAttributes(semconv.MessagingBatchMessageCount(n))
	}
	for i := range ops {
		sender := in.propagator.Extract(context.Background(), carrier{&ops[i].Message.Headers})
		span.AddLink(trace.LinkFromContext(sender))
	}
	return ctx, span
}

// end records the error, if any, and ends a span.
func end(span trace.Span, err error) {
	if err != nil && span.IsRecording() {
		span.SetAttributes(semconv.ErrorTypeKey.String(errorType(err)))
		span.SetStatus(codes.Error, errorText(err))
	}
	span.End()
}

// startNewTrace is the header by which a sender, also one of NServiceBus, asks the receiver to
// begin a new trace with a link to the sender's.
const (
	startNewTrace = header.StartNewTrace
	yes           = "True"
)

// carrier adapts headers to a propagator.
type carrier struct{ *header.Map }

var _ propagation.TextMapCarrier = carrier{}

func (c carrier) Keys() []string {
	keys := make([]string, 0, c.Len())
	for name := range c.All() {
		keys = append(keys, name)
	}
	return keys
}

// parent returns ctx with the trace of a message, or a link to that trace if the message begins a
// new one: processing that happens hours later, or at many subscribers, is not part of the original
// request and is sampled separately.
func (in *instrumentation) parent(
	ctx context.Context, h header.Map,
) (context.Context, []trace.SpanStartOption) {
	ctx = in.propagator.Extract(ctx, carrier{&h})
	if h.Get(startNewTrace) != yes && fault.DelayedRetries(h) == 0 {
		return ctx, nil
	}
	opts := []trace.SpanStartOption{trace.WithNewRoot()}
	if from := trace.SpanContextFromContext(ctx); from.IsValid() {
		opts = append(opts, trace.WithLinks(trace.Link{SpanContext: from}))
	}
	return ctx, opts
}

// relay makes a span for each dispatch of messages of the outbox. It links to the spans in which
// they were sent, whose traces may have ended long before.
func (in *instrumentation) relay(
	next pipeline.Func[*pipeline.Relay],
) pipeline.Func[*pipeline.Relay] {
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

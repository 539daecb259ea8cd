package otel

import (
	"context"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport"
)

// outgoing makes a span for each sent message, and writes its context into the headers.
func (in *instrumentation) outgoing(next pipeline.Func[*pipeline.Outgoing]) pipeline.Func[*pipeline.Outgoing] {
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
func (in *instrumentation) dispatch(next pipeline.Func[*pipeline.Dispatch]) pipeline.Func[*pipeline.Dispatch] {
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

package otel

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/pipeline"
)

// receive is the outermost behavior of the Receive stage: it begins the process span.
func (in *instrumentation) receive(next pipeline.Func[*pipeline.Receive]) pipeline.Func[*pipeline.Receive] {
	return func(ctx context.Context, r *pipeline.Receive) (err error) {
		ctx, a := in.begin(ctx, r)
		in.metrics.fetched(ctx, r.Queue)
		err = errPanicked
		defer func() { in.interrupted(ctx, a, err) }()
		return next(ctx, r)
	}
}

// maxID bounds an id in a span, in bytes: another program has chosen it.
const maxID = 512

func (in *instrumentation) received(r *pipeline.Receive) []attribute.KeyValue {
	attrs := []attribute.KeyValue{
		semconv.MessagingSystemKey.String(in.system), keyEndpoint.String(in.endpoint),
		semconv.MessagingOperationName(operationProcess), semconv.MessagingOperationTypeProcess,
		semconv.MessagingDestinationName(r.Queue), semconv.MessagingMessageBodySize(len(r.Body)),
		keyAttempt.Int(r.Attempt.N),
	}
	if id := r.Message.ID; id != "" {
		attrs = append(attrs, semconv.MessagingMessageID(errtree.Cut(id, maxID)))
	}
	if id := r.Message.Headers.Get(header.ConversationID); id != "" {
		attrs = append(attrs, semconv.MessagingMessageConversationID(errtree.Cut(id, maxID)))
	}
	if n := fault.DelayedRetries(r.Message.Headers); n > 0 {
		attrs = append(attrs, keyDelayedRetries.Int(n))
	}
	return append(attrs, job(r.Message)...)
}

// logical records the type of the message.
func (in *instrumentation) logical(next pipeline.Func[*pipeline.Logical]) pipeline.Func[*pipeline.Logical] {
	return func(ctx context.Context, l *pipeline.Logical) error {
		if a := attemptOf(l.Receive); a != nil {
			a.message = l.Type
			a.span.SetAttributes(keyMessageType.String(l.Type))
		}
		return next(ctx, l)
	}
}

// invoke measures one handler.
func (in *instrumentation) invoke(next pipeline.Func[*pipeline.Invoke]) pipeline.Func[*pipeline.Invoke] {
	return func(ctx context.Context, i *pipeline.Invoke) (err error) {
		ctx, span := in.tracer.Start(ctx, i.Handler, trace.WithAttributes(
			keyEndpoint.String(in.endpoint), keyHandler.String(i.Handler), keyMessageType.String(i.Type)))
		began := time.Now()
		err = errPanicked
		defer func() {
			of := label{message: i.Type, handler: i.Handler, errorType: errorType(err)}
			in.metrics.handlers.Record(ctx, time.Since(began).Seconds(), in.metrics.labels.of(of).record...)
			if err != nil {
				in.sagas.failed(ctx, i.Receive)
			}
			end(span, err)
		}()
		return next(ctx, i)
	}
}

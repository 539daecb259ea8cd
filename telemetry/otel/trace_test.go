package otel_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// shop has named methods, so that handlers have names.
type shop struct{ err error }

func (s shop) Place(ctx context.Context, session *endpoint.Session, m harness.PlaceOrder) error {
	if s.err != nil {
		return s.err
	}
	return errors.Join(session.Publish(ctx, harness.OrderPlaced(m)), session.Reply(ctx, harness.OrderAccepted(m)))
}

func (shop) Placed(context.Context, *endpoint.Session, harness.OrderPlaced) error { return nil }

func (shop) Accepted(context.Context, *endpoint.Session, harness.OrderAccepted) error { return nil }

func (s shop) handlers() []endpoint.Handler {
	return []endpoint.Handler{endpoint.Handle(s.Place), endpoint.Handle(s.Placed), endpoint.Handle(s.Accepted)}
}

func TestATraceFollowsTheMessages(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		tel := newTelemetry(t)
		cfg := harness.Sales(broker, shop{}.handlers()...)
		cfg.Concurrency = 1
		ep := tel.start(cfg)

		ctx, request := tel.traces.Tracer("test").Start(t.Context(), "request")
		ep.send(ctx, harness.PlaceOrder{ID: "1"})
		request.End()
		synctest.Wait()

		want := strings.TrimPrefix(`
request (internal)
  send sales (producer)
    process sales (consumer)
      otel_test.shop.Place (internal)
        publish Shop.OrderPlaced (producer)
        reply (producer)
          process sales (consumer)
            otel_test.shop.Accepted (internal)
            complete sales (client)
      dispatch (client) -> publish Shop.OrderPlaced -> reply
  dispatch (client) -> send sales
process sales (consumer) -> publish Shop.OrderPlaced
  otel_test.shop.Placed (internal)
  complete sales (client)
`, "\n")
		if diff := cmp.Diff(want, tel.tree()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestSpansSayWhatTheConventionsAskFor(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		tel := newTelemetry(t)
		ep := tel.start(harness.Sales(broker, done))
		ep.send(t.Context(), harness.PlaceOrder{ID: "1"}, endpoint.MessageID("m1"), endpoint.Header(header.ConversationID, "c1"))

		for name, want := range map[string][]string{
			"send sales": {
				"holdfast.endpoint=sales", "holdfast.message.type=Shop.PlaceOrder", "messaging.destination.name=sales",
				"messaging.message.body.size=10", "messaging.message.conversation_id=c1", "messaging.message.id=m1",
				"messaging.operation.name=send", "messaging.operation.type=create", "messaging.system=inmemory",
			},
			"process sales": {
				"holdfast.attempt=1", "holdfast.endpoint=sales", "holdfast.message.type=Shop.PlaceOrder",
				"messaging.destination.name=sales", "messaging.message.body.size=10",
				"messaging.message.conversation_id=c1", "messaging.message.id=m1",
				"messaging.operation.name=process", "messaging.operation.type=process", "messaging.system=inmemory",
			},
			"complete sales": {
				"holdfast.endpoint=sales", "messaging.operation.name=complete",
				"messaging.operation.type=settle", "messaging.system=inmemory",
			},
		} {
			if diff := cmp.Diff(want, told(tel.only(name).Attributes())); diff != "" {
				t.Errorf("%s:\n%s", name, diff)
			}
		}
	})
}

func TestADelayedMessageStartsATraceThatLinksBack(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		tel := newTelemetry(t)
		ep := tel.start(harness.Sales(broker, done))
		ep.send(t.Context(), harness.PlaceOrder{ID: "1"}, endpoint.After(time.Hour))
		time.Sleep(time.Hour)
		synctest.Wait()

		tel.linked(tel.only("process sales"), tel.only("send sales"))
	})
}

// linked fails unless s is the root of a trace that links to from.
func (tel *telemetry) linked(s, from sdktrace.ReadOnlySpan) {
	tel.t.Helper()
	if s.Parent().IsValid() || s.SpanContext().TraceID() == from.SpanContext().TraceID() {
		tel.t.Errorf("%s is part of the trace of %s", s.Name(), from.Name())
	}
	if len(s.Links()) != 1 || s.Links()[0].SpanContext.SpanID() != from.SpanContext().SpanID() {
		tel.t.Errorf("%s links to %v, want %s", s.Name(), s.Links(), from.Name())
	}
}

func TestDelayedRetriesAreLinkedAndImmediateOnesAreNot(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		tel := newTelemetry(t)
		cfg := harness.Sales(broker, failing(errors.New("no funds")))
		cfg.Recoverability = recoverability.Config{Immediate: 1, Delayed: 1, Delays: recoverability.Delays{Delay: time.Minute}}
		ep := tel.start(cfg)
		ep.send(t.Context(), harness.PlaceOrder{ID: "1"})
		time.Sleep(time.Minute)
		synctest.Wait()

		sent, attempts := tel.only("send sales"), tel.named("process sales")
		if len(attempts) != 4 {
			t.Fatalf("%d attempts, want 4", len(attempts))
		}
		for i, a := range attempts[:2] {
			if a.Parent().SpanID() != sent.SpanContext().SpanID() {
				t.Errorf("attempt %d is no child of the send", i+1)
			}
		}
		for _, a := range attempts[2:] {
			tel.linked(a, sent)
			if got := told(a.Attributes()); !slices.Contains(got, "holdfast.delayed_retries=1") {
				t.Errorf("attributes are %q: want the delayed retry", got)
			}
		}
	})
}

func TestAFailureAndItsDecisionAreOnTheProcessSpan(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		tel := newTelemetry(t)
		cfg := harness.Sales(broker, shop{err: recoverability.Unrecoverable(&fundsError{})}.handlers()...)
		ep := tel.start(cfg)
		ep.send(t.Context(), harness.PlaceOrder{ID: "1"})

		process := tel.only("process sales")
		var got []string
		for _, e := range process.Events() {
			got = append(got, e.Name)
			got = append(got, told(e.Attributes)...)
		}
		want := []string{
			"exception", "exception.message=handler otel_test.shop.Place: no funds", "exception.type=*otel_test.fundsError",
			"recoverability", "holdfast.recoverability.action=error", "holdfast.recoverability.queue=error",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		for _, s := range []sdktrace.ReadOnlySpan{process, tel.only("otel_test.shop.Place")} {
			if s.Status().Code != codes.Error || !strings.HasSuffix(s.Status().Description, "no funds") {
				t.Errorf("%s: status %v", s.Name(), s.Status())
			}
			if attrs := told(s.Attributes()); !slices.Contains(attrs, "error.type=*otel_test.fundsError") {
				t.Errorf("%s: attributes are %q: want the error's type", s.Name(), attrs)
			}
		}
	})
}

type fundsError struct{}

func (*fundsError) Error() string { return "no funds" }

func TestWhatTheRecoverStageSendsIsInTheTrace(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		tel := newTelemetry(t)
		cfg := harness.Sales(broker, failing(recoverability.Unrecoverable(errors.New("no funds"))))
		cfg.Pipeline.Recover.Use("tell", func(next pipeline.Func[*pipeline.Recover]) pipeline.Func[*pipeline.Recover] {
			return func(ctx context.Context, rec *pipeline.Recover) error {
				return errors.Join(rec.Sender().Publish(ctx, harness.OrderPlaced{ID: "failed"}), next(ctx, rec))
			}
		})
		tel.start(cfg).send(t.Context(), harness.PlaceOrder{ID: "1"})

		sent, process := tel.only("publish Shop.OrderPlaced"), tel.only("process sales")
		if sent.Parent().SpanID() != process.SpanContext().SpanID() {
			t.Errorf("it is no child of the process span:\n%s", tel.tree())
		}
	})
}

func TestAPanicHasItsStack(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		tel := newTelemetry(t)
		cfg := harness.Sales(broker, endpoint.Handle(func(context.Context, *endpoint.Session, harness.PlaceOrder) error { panic("out of stock") }))
		cfg.Recoverability = recoverability.Config{Immediate: recoverability.None, Delayed: recoverability.None}
		ep := tel.start(cfg)
		ep.send(t.Context(), harness.PlaceOrder{ID: "1"})

		event := tel.only("process sales").Events()[0]
		got := strings.Join(told(event.Attributes), "\n")
		for _, want := range []string{"exception.stacktrace=goroutine ", "trace_test.go", "exception.type=*endpoint.PanicError", "panic: out of stock"} {
			if !strings.Contains(got, want) {
				t.Errorf("%s has no %q:\n%s", event.Name, want, got)
			}
		}
		if strings.Contains(tel.tree(), "never ended") {
			t.Errorf("spans are open:\n%s", tel.tree())
		}
	})
}

func TestAMessageThatCannotBeDecodedHasASpan(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		tel := newTelemetry(t)
		tel.start(harness.Sales(broker, done))
		if err := broker.Put("sales", &transport.Message{ID: "m1", Undecodable: errors.New("odd frame")}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()

		if got := tel.only("process sales").Status(); got.Code != codes.Error || !strings.Contains(got.Description, "odd frame") {
			t.Errorf("status %v", got)
		}
		for name, n := range tel.about("messaging.client.consumed") {
			if n != 1 {
				t.Errorf("%s is %v, want 1", name, n)
			}
		}
	})
}

func TestAnInterruptedMessageIsNoFailure(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		tel := newTelemetry(t)
		cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, _ *endpoint.Session, _ harness.PlaceOrder) error {
			<-ctx.Done()
			return ctx.Err()
		}))
		cfg.StopTimeout = time.Second
		ep := tel.start(cfg)
		ep.send(t.Context(), harness.PlaceOrder{ID: "1"})
		ep.End()

		process := tel.only("process sales")
		if len(process.Events()) != 1 || process.Events()[0].Name != "interrupted" || process.Status().Code == codes.Error {
			t.Errorf("events %v, status %v: want it interrupted", process.Events(), process.Status())
		}
		if got := tel.about("holdfast.messages."); len(got) > 0 {
			t.Errorf("it counts as %v", got)
		}
	})
}

// What a handler writes to the log, or sends by itself, is part of its span.
func TestBaggageAndSpanReachTheHandler(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		tel := newTelemetry(t)
		var tenant string
		var span trace.SpanContext
		ep := tel.start(harness.Sales(broker, endpoint.Handle(func(ctx context.Context, _ *endpoint.Session, _ harness.PlaceOrder) error {
			tenant = baggage.FromContext(ctx).Member("tenant").Value()
			span = trace.SpanContextFromContext(ctx)
			return nil
		})))
		member, err := baggage.NewMember("tenant", "acme")
		if err != nil {
			t.Fatal(err)
		}
		bag, err := baggage.New(member)
		if err != nil {
			t.Fatal(err)
		}
		ep.send(baggage.ContextWithBaggage(t.Context(), bag), harness.PlaceOrder{ID: "1"})

		if tenant != "acme" {
			t.Errorf("tenant is %q, want acme", tenant)
		}
		if span.TraceID() != tel.only("process sales").SpanContext().TraceID() {
			t.Error("the handler's context is not in the trace of the message")
		}
	})
}

func TestHeadersAreThoseOfNServiceBus(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		tel := newTelemetry(t)
		broker.CreateQueues("elsewhere")
		ep := tel.start(harness.Sales(broker, done))
		ep.send(t.Context(), harness.PlaceOrder{ID: "1"}, endpoint.To("elsewhere"))
		ep.send(t.Context(), harness.PlaceOrder{ID: "2"}, endpoint.To("elsewhere"), endpoint.At(time.Now().Add(time.Second)))
		time.Sleep(time.Second)

		for i, want := range []string{"", "True"} {
			h := broker.Messages("elsewhere")[i].Headers
			if got := h.Get("NServiceBus.OpenTelemetry.StartNewTrace"); got != want {
				t.Errorf("message %d: StartNewTrace is %q, want %q", i+1, got, want)
			}
			if !strings.HasPrefix(h.Get("traceparent"), "00-") {
				t.Errorf("message %d: traceparent is %q", i+1, h.Get("traceparent"))
			}
		}
	})
}

func TestATraceFromOutsideGoesOn(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		tel := newTelemetry(t)
		ep := tel.start(harness.Sales(broker, done))
		broker.Put("sales", &transport.Message{ID: "m1", Body: []byte(`{"ID":"1"}`), Headers: header.New(
			header.Field{Name: header.EnclosedMessageTypes, Value: "Shop.PlaceOrder, Shop, Version=1.0.0.0"},
			header.Field{Name: "traceparent", Value: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
			header.Field{Name: "tracestate", Value: "vendor=1"},
		)})
		synctest.Wait()
		ep.End()

		got := tel.only("process sales")
		if got.Parent().SpanID().String() != "b7ad6b7169203331" || got.SpanContext().TraceState().String() != "vendor=1" {
			t.Errorf("parent %v, state %v: want those of the message", got.Parent().SpanID(), got.SpanContext().TraceState())
		}
	})
}

func TestTraceContextPassesThroughWhereTracingIsOff(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		tel := newTelemetry(t)
		tel.options.TracerProvider = noop.NewTracerProvider()
		broker.CreateQueues("elsewhere")
		ep := tel.start(harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m harness.PlaceOrder) error {
			return s.Send(ctx, m, endpoint.To("elsewhere"))
		})))
		ctx, request := tel.traces.Tracer("test").Start(t.Context(), "request")
		ep.send(ctx, harness.PlaceOrder{ID: "1"})
		request.End()

		carried := propagation.HeaderCarrier{}
		propagation.TraceContext{}.Inject(ctx, carried)
		if got := broker.Messages("elsewhere")[0].Headers.Get("traceparent"); got != carried.Get("traceparent") {
			t.Errorf("traceparent is %q, want that of the request, %q", got, carried.Get("traceparent"))
		}
	})
}

func TestThePropagatorCanBeAnother(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		tel := newTelemetry(t)
		tel.options.Propagator = propagation.Baggage{}
		broker.CreateQueues("elsewhere")
		ep := tel.start(harness.Sales(broker, done))
		ep.send(t.Context(), harness.PlaceOrder{ID: "1"}, endpoint.To("elsewhere"))
		if got := broker.Messages("elsewhere")[0].Headers.Get("traceparent"); got != "" {
			t.Errorf("traceparent is %q, want none", got)
		}
	})
}

func TestBehaviorsAreOnTheOutside(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		tel := newTelemetry(t)
		cfg := harness.Sales(broker, done)
		var span trace.SpanContext
		cfg.Pipeline.Receive.Use("peek", func(next pipeline.Func[*pipeline.Receive]) pipeline.Func[*pipeline.Receive] {
			return func(ctx context.Context, r *pipeline.Receive) error {
				span = trace.SpanContextFromContext(ctx)
				return next(ctx, r)
			}
		})
		tel.start(cfg).send(t.Context(), harness.PlaceOrder{ID: "1"})
		if got := tel.only("process sales").SpanContext(); span.SpanID() != got.SpanID() {
			t.Errorf("a behavior that was there before sees span %v, want %v", span.SpanID(), got.SpanID())
		}
	})
}

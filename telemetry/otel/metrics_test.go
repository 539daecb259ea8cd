package otel_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/codes"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/telemetry/otel"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

const (
	common  = "holdfast.endpoint=sales"
	process = ",holdfast.message.type=Shop.PlaceOrder,messaging.destination.name=sales,messaging.operation.name=process,messaging.system=inmemory}"
)

func TestASuccessIsMeasured(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		tel := newTelemetry(t)
		ep := tel.start(harness.Sales(broker, endpoint.Handle(shop{}.slow)))
		ep.send(t.Context(), harness.PlaceOrder{ID: "1"})
		time.Sleep(2 * time.Second)
		synctest.Wait()

		got := tel.metrics()
		for name := range got {
			if strings.HasPrefix(name, "holdfast.queue.") {
				delete(got, name)
			}
		}
		handler := "{" + common + ",holdfast.handler=otel_test.shop.slow,holdfast.message.type=Shop.PlaceOrder,messaging.system=inmemory}"
		request := func(operation string) string {
			return "{" + common + ",messaging.operation.name=" + operation + ",messaging.system=inmemory}"
		}
		want := map[string]float64{
			"messaging.client.consumed.messages{" + common + ",messaging.destination.name=sales,messaging.operation.name=receive,messaging.system=inmemory}": 1,
			"holdfast.messages.succeeded{" + common + process: 1,

			"messaging.process.duration.count{" + common + process: 1,
			"messaging.process.duration.sum{" + common + process:   2,
			"holdfast.critical_time.count{" + common + process:     1,
			"holdfast.critical_time.sum{" + common + process:       2,
			"holdfast.handler.duration.count" + handler:            1,
			"holdfast.handler.duration.sum" + handler:              2,

			"messaging.client.sent.messages{" + common + ",holdfast.message.type=Shop.PlaceOrder,messaging.destination.name=sales,messaging.operation.name=send,messaging.system=inmemory}": 1,

			"messaging.client.operation.duration.count" + request("dispatch"): 1,
			"messaging.client.operation.duration.sum" + request("dispatch"):   0,
			"messaging.client.operation.duration.count" + request("complete"): 1,
			"messaging.client.operation.duration.sum" + request("complete"):   0,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})
}

func (shop) slow(context.Context, *endpoint.Session, harness.PlaceOrder) error {
	time.Sleep(2 * time.Second)
	return nil
}

func TestCriticalTimeOfADelayedMessageBeginsWhenItIsDue(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		tel := newTelemetry(t)
		ep := tel.start(harness.Sales(broker, endpoint.Handle(shop{}.slow)))
		ep.send(t.Context(), harness.PlaceOrder{ID: "1"}, endpoint.After(time.Hour))
		time.Sleep(time.Hour + 2*time.Second)
		synctest.Wait()

		if got := tel.metrics()["holdfast.critical_time.sum{"+common+process]; got != 2 {
			t.Errorf("critical time is %v s, want 2", got)
		}
	})
}

func TestASendersClockThatIsAheadGivesNoNegativeTime(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		tel := newTelemetry(t)
		cfg := harness.Sales(broker, done)
		cfg.Pipeline.Outgoing.Use("ahead", func(next pipeline.Func[*pipeline.Outgoing]) pipeline.Func[*pipeline.Outgoing] {
			return func(ctx context.Context, out *pipeline.Outgoing) error {
				err := next(ctx, out)
				out.Operation.Message.Headers.Set(header.TimeSent, header.FormatTime(time.Now().Add(time.Hour)))
				return err
			}
		})
		ep := tel.start(cfg)
		ep.send(t.Context(), harness.PlaceOrder{ID: "1"})

		if got := tel.about("holdfast.critical_time.sum")["holdfast.critical_time.sum{"+common+process]; got != 0 {
			t.Errorf("critical time is %v s, want 0", got)
		}
	})
}

func TestDecisionsAreCounted(t *testing.T) {
	for name, test := range map[string]struct {
		action recoverability.Action
		want   string
	}{
		"immediate":   {recoverability.Retry{}, "immediate"},
		"delayed":     {recoverability.Delay{For: time.Second}, "delayed"},
		"error":       {recoverability.MoveToError{}, "error"},
		"dead letter": {recoverability.DeadLetter{Reason: "old"}, "dead_letter"},
		"discard":     {recoverability.Discard{Reason: "old"}, "discard"},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				tel := newTelemetry(t)
				cfg := harness.Sales(broker, failing(errors.New("no funds")))
				cfg.Recoverability.Policy = func(f recoverability.Failure) recoverability.Action {
					if f.Immediate+f.Delayed > 1 {
						return recoverability.MoveToError{}
					}
					return test.action
				}
				tel.start(cfg).send(t.Context(), harness.PlaceOrder{ID: "1"})

				key := fmt.Sprintf("holdfast.recoverability.actions{error.type=*errors.errorString,%s,"+
					"holdfast.error.class=*errors.errorString,holdfast.message.type=Shop.PlaceOrder,holdfast.recoverability.action=%s,"+
					"messaging.destination.name=sales,messaging.system=inmemory}", common, test.want)
				got := tel.metrics()
				if got[key] != 1 {
					t.Errorf("%s is not 1 in %v", key, tel.about("holdfast.recoverability"))
				}
				failed := "holdfast.messages.failed{error.type=*errors.errorString," + common + process
				if got[failed] == 0 {
					t.Errorf("%s is not there in %v", failed, tel.about("holdfast.messages"))
				}
			})
		})
	}
}

// An action that cannot be carried out is counted as the action that replaced it.
func TestAnImpossibleActionCountsAsWhatWasDone(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.Without = inmemory.Delay
		tel := newTelemetry(t)
		cfg := harness.Sales(broker, failing(errors.New("no funds")))
		cfg.Recoverability.Policy = func(recoverability.Failure) recoverability.Action { return recoverability.Delay{For: time.Second} }
		tel.start(cfg).send(t.Context(), harness.PlaceOrder{ID: "1"})

		for name := range tel.about("holdfast.recoverability.actions") {
			if !strings.Contains(name, "holdfast.recoverability.action=error,") {
				t.Errorf("counted %s, want a move to the error queue", name)
			}
		}
	})
}

func TestARefusedOperationIsCountedWithItsError(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		tel := newTelemetry(t)
		ep := tel.start(harness.Sales(broker, done))
		if err := ep.Send(t.Context(), harness.PlaceOrder{ID: "1"}, endpoint.To("nowhere")); !errors.Is(err, transport.ErrNoQueue) {
			t.Fatal(err)
		}
		want := "messaging.client.sent.messages{error.type=*errors.errorString," + common +
			",holdfast.message.type=Shop.PlaceOrder,messaging.destination.name=nowhere,messaging.operation.name=send,messaging.system=inmemory}"
		if got := tel.about("messaging.client.sent"); got[want] != 1 {
			t.Errorf("%s is not 1 in %v", want, got)
		}
	})
}

// Whatever comes from outside must not make series: ids, unknown types, queues for replies.
func TestAThousandMessagesMakeNoMoreSeriesThanTen(t *testing.T) {
	series := func(messages int) (n int) {
		harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
			tel := newTelemetry(t)
			broker.CreateQueues("audit")
			cfg := harness.Sales(broker, shop{}.handlers()...)
			cfg.Pipeline.Dispatch.Use("audit", audit)
			ep := tel.start(cfg)
			for i := range messages {
				queue := fmt.Sprintf("client-%d", i)
				broker.CreateQueues(queue)
				ep.send(t.Context(), harness.PlaceOrder{ID: fmt.Sprint(i)}, endpoint.ReplyTo(queue))
				broker.Put("sales", &transport.Message{ID: fmt.Sprint(i), Headers: header.New(
					header.Field{Name: header.EnclosedMessageTypes, Value: fmt.Sprintf("Unknown.Type%d", i)})})
				broker.Put("sales", &transport.Message{ID: fmt.Sprint(i), Body: []byte(`{"ID":"1"}`), Headers: header.New(
					header.Field{Name: header.MessageIntent, Value: fmt.Sprintf("Odd%d", i)},
					header.Field{Name: header.EnclosedMessageTypes, Value: fmt.Sprintf("Unknown.Type%d;Shop.OrderPlaced", i)})})
			}
			synctest.Wait()
			n = len(tel.metrics())
		})
		return n
	}
	if few, many := series(10), series(1000); few != many {
		t.Errorf("10 messages make %d series, 1000 make %d", few, many)
	}
}

// audit sends a copy of the message along, headers and all.
func audit(next pipeline.Func[*pipeline.Dispatch]) pipeline.Func[*pipeline.Dispatch] {
	return func(ctx context.Context, d *pipeline.Dispatch) error {
		if d.Incoming != nil {
			d.Operations = append(d.Operations, transport.Operation{Queue: "audit", Message: d.Incoming.Message})
		}
		return next(ctx, d)
	}
}

func TestQueuesAreMeasuredWhileConnected(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		tel := newTelemetry(t)
		release := make(chan struct{})
		cfg := harness.Sales(broker, endpoint.Handle(func(context.Context, *endpoint.Session, harness.PlaceOrder) error {
			<-release
			return nil
		}))
		cfg.Concurrency = 1
		ep := tel.start(cfg)
		for range 4 {
			ep.send(t.Context(), harness.PlaceOrder{ID: "1"})
		}
		ep.send(t.Context(), harness.PlaceOrder{ID: "1"}, endpoint.After(time.Hour))
		if err := ep.Install(t.Context()); err != nil { // opens and closes another connection
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)

		got := tel.about("holdfast.queue.")
		gauge := func(name, queue, state string) float64 {
			if state != "" {
				state = ",holdfast.queue.state=" + state
			}
			v, ok := got["holdfast.queue."+name+"{"+common+state+",messaging.destination.name="+queue+",messaging.system=inmemory}"]
			if !ok {
				t.Errorf("%s of %s%s is not there", name, queue, state)
			}
			return v
		}
		all := gauge("messages", "sales", "ready") + gauge("messages", "sales", "unsettled")
		if delayed := gauge("messages", "sales", "delayed"); all != 4 || delayed != 1 {
			t.Errorf("%v messages and %v delayed, want 4 and 1: %v", all, delayed, got)
		}
		if gauge("messages", "sales", "ready") > 0 && gauge("oldest_age", "sales", "") != 3 {
			t.Errorf("the oldest message is not 3 s old: %v", got)
		}
		if n := gauge("messages", "error", "ready"); n != 0 {
			t.Errorf("%v messages in the error queue", n)
		}

		close(release)
		ep.End()
		if got := tel.about("holdfast.queue."); len(got) > 0 {
			t.Errorf("measured without a connection: %v", got)
		}
	})
}

func TestQueuesThatCannotBeLookedAtAreLeftOut(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		broker.Without = inmemory.Inspector
		tel := newTelemetry(t)
		tel.start(harness.Sales(broker, done))
		if got := tel.about("holdfast.queue."); len(got) > 0 {
			t.Errorf("measured: %v", got)
		}
	})
}

func TestAMissingErrorQueueDoesNotHideTheOther(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var deleted atomic.Bool
		broker.Fail = func(verb, object string) error {
			if verb == "Inspect" && object == "error" && deleted.Load() {
				return transport.ErrNoQueue
			}
			return nil
		}
		tel := newTelemetry(t)
		tel.start(harness.Sales(broker, done))
		deleted.Store(true)
		for range 2 {
			if got := tel.about("holdfast.queue."); len(got) != 4 {
				t.Errorf("measured %v, want 4 values of the endpoint's queue", got)
			}
		}
	})
}

func TestInstrumentingTwiceIsAnError(t *testing.T) {
	tel := newTelemetry(t)
	cfg := harness.Sales(&inmemory.Transport{}, done)
	otel.Instrument(&cfg, tel.options)
	otel.Instrument(&cfg, tel.options)
	if _, err := endpoint.New(cfg); err == nil || !strings.Contains(err.Error(), `"otel" is there already`) {
		t.Errorf("error is %v", err)
	}
}

func TestInstrumentingAnIncompleteConfigLeavesItToNew(t *testing.T) {
	var cfg endpoint.Config
	otel.Instrument(&cfg, otel.Options{})
	if _, err := endpoint.New(cfg); err == nil || !strings.Contains(err.Error(), "Transport is nil") {
		t.Errorf("error is %v", err)
	}
}

func TestTheRelayOfAnOutboxHasSpans(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		tel := newTelemetry(t)
		var away atomic.Bool
		away.Store(true)
		broker.Fail = func(verb, _ string) error {
			if away.Load() && verb == "Dispatch" {
				return transport.ErrUnreachable
			}
			return nil
		}
		cfg := harness.Sales(broker, endpoint.Handle(shop{}.Accepted))
		cfg.Outbox = &inmemory.Transport{}
		ep := tel.start(cfg)
		ctx, request := tel.traces.Tracer("test").Start(t.Context(), "request")
		ep.send(ctx, harness.OrderAccepted{ID: "1"}, endpoint.To("sales"), endpoint.ViaOutbox())
		request.End()
		synctest.Wait()
		away.Store(false)
		time.Sleep(time.Second)
		want := strings.TrimPrefix(`
request (internal)
  send sales (producer)
    process sales (consumer)
      otel_test.shop.Accepted (internal)
      complete sales (client)
  dispatch (client) -> send sales
relay (client) -> send sales
relay (client) -> send sales
`, "\n")
		if diff := cmp.Diff(want, tel.tree()); diff != "" {
			t.Error(diff)
		}
		relays := tel.named("relay")
		if len(relays) != 2 || relays[0].Status().Code != codes.Error || relays[1].Status().Code != codes.Unset {
			t.Errorf("the first span has no error, or the second has one: %v", relays)
		}
	})
}

func TestAnOutboxIsMeasured(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		tel := newTelemetry(t)
		cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m harness.PlaceOrder) error {
			return s.Publish(ctx, harness.OrderPlaced(m))
		}))
		cfg.Outbox = &inmemory.Transport{}
		ep := tel.start(cfg)
		for range 2 { // the second is a duplicate
			ep.send(t.Context(), harness.PlaceOrder{ID: "1"}, endpoint.MessageID("m-1"))
			time.Sleep(time.Second)
		}
		got := tel.about("holdfast.")
		tags := "{" + common + ",messaging.system=inmemory}"
		for name, want := range map[string]float64{"holdfast.outbox.sent": 1, "holdfast.outbox.refused": 0, "holdfast.inbox.duplicates": 1} {
			if v, ok := got[name+tags]; !ok || v != want {
				t.Errorf("%s is %v, want %v", name, v, want)
			}
		}
		queue := "holdfast.queue.oldest_age{" + common + ",messaging.destination.name=sales.outbox,messaging.system=inmemory}"
		if v, ok := got[queue]; !ok || v != 0 {
			t.Errorf("the outbox is not measured as a queue: %v", got)
		}
	})
}

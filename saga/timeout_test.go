package saga_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/saga"
	"github.com/holdfast-go/holdfast/transport"
)

// late is the step of a time-out.
func late(_ context.Context, c *orderContext, m orderLate) error {
	c.State.Seen = append(c.State.Seen, "late "+m.Note)
	return nil
}

// setting is a step that sets the time-out "payment".
func setting(d time.Duration) func(context.Context, *orderContext, placeOrder) error {
	n := 0
	return func(ctx context.Context, c *orderContext, _ placeOrder) error {
		n++
		return c.SetTimeout(ctx, "payment", orderLate{fmt.Sprint(n)}, endpoint.After(d))
	}
}

func cancelling(ctx context.Context, c *orderContext, _ addItem) error {
	return c.CancelTimeout(ctx, "payment")
}

// timed is a saga whose Start sets a time-out of an hour, whose addItem cancels it, and that
// closeOrder ends.
func timed() *saga.Saga[order] {
	return saga.New("orders", saga.Start(placeOrder.key, setting(hour)), saga.On(addKey, cancelling),
		saga.On(closeKey, finish), saga.OnTimeout(late))
}

func (s *shop) wantIgnored(want saga.Ignored) {
	s.t.Helper()
	if i := s.invocations(1)[0]; !i.Timeout || i.Ignored != want {
		s.t.Errorf("the last invocation is %+v, want a time-out that is ignored as %q", i, want)
	}
}

func TestATimeoutIsHandledWhenItIsDue(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.start(timed().Handlers()...)
		s.handle(placeOrder{"1"}, placeOrder{"2"})
		sleep(hour - 5*time.Second)
		s.wantState("1", order{})
		sleep(10 * time.Second)
		s.wantState("1", order{Seen: []string{"late 1"}})
		s.wantState("2", order{Seen: []string{"late 2"}})
		if i := s.invocations(1)[0]; !i.Timeout || i.Key != "2" {
			t.Errorf("invocation %+v", i)
		}
		s.wantFailures(0)
	})
}

func TestATimeoutThatIsSetAgainReplacesTheFirst(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.start(timed().Handlers()...)
		s.handle(placeOrder{"1"})
		sleep(30 * time.Minute)
		s.handle(placeOrder{"1"})
		sleep(31 * time.Minute)
		s.wantState("1", order{})
		sleep(30 * time.Minute)
		s.wantState("1", order{Seen: []string{"late 2"}})
		sleep(2 * hour)
		s.wantState("1", order{Seen: []string{"late 2"}})
	})
}

func TestACancelledTimeoutIsNotHandled(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.start(timed().Handlers()...)
		s.handle(placeOrder{"1"}, addItem{"1"}, addItem{"1"})
		sleep(2 * hour)
		s.wantState("1", order{})
		s.wantFailures(0)
		s.handle(placeOrder{"1"})
		sleep(2 * hour)
		s.wantState("1", order{Seen: []string{"late 2"}})
	})
}

// The time-out is on its way when it is cancelled, as its first attempt has failed.
func TestATimeoutThatIsCancelledOnItsWayIsIgnored(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		failing := true
		fail := func(ctx context.Context, c *orderContext, m orderLate) error {
			if failing {
				return errNo
			}
			return late(ctx, c, m)
		}
		cfg := s.config(saga.New("orders", saga.Start(placeOrder.key, setting(hour)), saga.On(addKey, cancelling), saga.OnTimeout(fail)).Handlers()...)
		cfg.Recoverability.Delayed = 1
		s.run(cfg)
		s.handle(placeOrder{"1"})
		sleep(hour)
		failing = false
		s.handle(addItem{"1"})
		sleep(hour)
		s.wantState("1", order{})
		s.wantIgnored(saga.IgnoredCancelled)
		s.wantFailures(0)
	})
}

func TestTheEndCancelsTimeouts(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.start(timed().Handlers()...)
		s.handle(placeOrder{"1"}, closeOrder{"1"})
		sleep(2 * hour)
		s.wantFailures(0)
		if r := s.record("1"); r.Status != transport.RecordEnded || r.Version != 2 || strings.Contains(string(r.Meta), "timeouts") {
			t.Errorf("record %+v with %s", r, r.Meta)
		}
	})
}

// A time-out of the instance before does not reach the one that began since.
func TestTimeoutsOfAnEarlierInstanceAreIgnored(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.start(timed().Restarts().Handlers()...)
		s.handle(placeOrder{"1"}, closeOrder{"1"}, placeOrder{"1"}, addItem{"1"})
		sleep(2 * hour)
		s.wantState("1", order{})
		s.wantFailures(0)
	})
}

func TestATimeoutOfADeletedInstanceIsIgnored(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.start(timed().Handlers()...)
		s.handle(placeOrder{"1"})
		if err := s.inspector().RemoveRecord(t.Context(), saga.ID("sales", "orders", "1")); err != nil {
			t.Fatal(err)
		}
		sleep(2 * hour)
		s.wantIgnored(saga.IgnoredUnknown)
		s.wantFailures(0)
	})
}

func TestATimeoutMaySetItselfAgain(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		again := func(ctx context.Context, c *orderContext, _ orderLate) error {
			if c.State.Items++; c.State.Items < 5 {
				return c.SetTimeout(ctx, "payment", orderLate{}, endpoint.After(hour))
			}
			return nil
		}
		s.start(saga.New("orders", saga.Start(placeOrder.key, setting(hour)), saga.OnTimeout(again)).Handlers()...)
		s.handle(placeOrder{"1"})
		sleep(24 * hour)
		s.wantState("1", order{Items: 5})
	})
}

func TestTimeoutsOfSeveralNamesWaitSideBySide(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		names := []string{"a", "a\x00b", "ä\u2028", strings.Repeat("n", 500)}
		set := func(ctx context.Context, c *orderContext, _ placeOrder) error {
			for i, name := range names {
				if err := c.SetTimeout(ctx, name, &orderLate{fmt.Sprint(i)}, endpoint.At(time.Now().Add(time.Duration(i+1)*hour))); err != nil {
					return err
				}
			}
			return c.CancelTimeout(ctx, names[1])
		}
		s.start(saga.New("orders", saga.Start(placeOrder.key, set), saga.OnTimeout(late)).Handlers()...)
		s.handle(placeOrder{"1"})
		sleep(24 * hour)
		s.wantState("1", order{Seen: []string{"late 0", "late 2", "late 3"}})
	})
}

func TestATimeoutInThePastIsDueAtOnce(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		set := func(ctx context.Context, c *orderContext, _ placeOrder) error {
			return errors.Join(c.SetTimeout(ctx, "past", orderLate{"past"}, endpoint.At(time.Now().Add(-hour))),
				c.SetTimeout(ctx, "now", orderLate{"now"}, endpoint.After(0)))
		}
		s.start(saga.New("orders", saga.Start(placeOrder.key, set), saga.OnTimeout(late)).Handlers()...)
		s.handle(placeOrder{"1"})
		s.wait()
		if diff := cmp.Diff(2, len(s.state("1").Seen)); diff != "" {
			t.Error(diff)
		}
	})
}

func TestWrongTimeoutsAreErrors(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		var got []string
		add := func(err error) { got = append(got, fmt.Sprint(err)) }
		var kept *orderContext
		set := func(ctx context.Context, c *orderContext, _ placeOrder) error {
			kept = c
			later := endpoint.After(hour)
			add(c.SetTimeout(ctx, "", orderLate{}, later))
			add(c.SetTimeout(ctx, strings.Repeat("n", 501), orderLate{}, later))
			add(c.SetTimeout(ctx, "a\xff", orderLate{}, later))
			add(c.SetTimeout(ctx, "a", orderLate{}))
			add(c.SetTimeout(ctx, "a", orderLate{}, endpoint.After(-1)))
			add(c.SetTimeout(ctx, "a", orderLate{}, later, endpoint.To("other")))
			add(c.SetTimeout(ctx, "a", addItem{}, later))
			add(c.SetTimeout(ctx, "a", nil, later))
			c.Complete()
			add(c.SetTimeout(ctx, "a", orderLate{}, later))
			return nil
		}
		s.start(saga.New("orders", saga.Start(placeOrder.key, set), saga.OnTimeout(late)).Handlers()...)
		s.handle(placeOrder{"1"})
		for i, want := range []string{
			"the name is empty", "the name has 501 bytes", "not valid UTF-8", "it has no time", "must not be negative", "cannot be sent elsewhere",
			"the saga has no OnTimeout for a saga_test.addItem", "the saga has no OnTimeout for a <nil>", "the instance is completed",
		} {
			if i >= len(got) || !strings.Contains(got[i], want) {
				t.Errorf("error %d is not %q: %q", i, want, got)
			}
		}
		ctx := t.Context()
		kept.Complete()
		for _, err := range []error{
			kept.SetTimeout(ctx, "a", orderLate{}, endpoint.After(hour)), kept.CancelTimeout(ctx, "a"),
			kept.ReplyToStarter(ctx, orderDone{}), kept.Send(ctx, askStock{}),
		} {
			if err == nil {
				t.Error("a context that is over can be used")
			}
		}
		s.wantFailures(0)
	})
}

// A time-out is for the saga that set it, and a message of its type that is none is not.
func TestATimeoutReachesItsSagaAlone(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		shared := func(name string) *saga.Saga[order] {
			set := func(ctx context.Context, c *orderContext, _ placeOrder) error {
				if name != "orders" {
					return nil
				}
				return c.SetTimeout(ctx, "payment", orderLate{name}, endpoint.After(hour))
			}
			onLate := func(_ context.Context, c *orderContext, m orderLate) error {
				c.State.Seen = append(c.State.Seen, "message "+m.Note)
				return nil
			}
			return saga.New(name, saga.Start(placeOrder.key, set), saga.OnTimeout(late), saga.On(func(m orderLate) string { return m.Note }, onLate))
		}
		s.start(append(shared("orders").Handlers(), shared("bills").Handlers()...)...)
		s.handle(placeOrder{"1"})
		s.put("Shop.OrderLate", `{"Note":"1"}`)
		sleep(2 * hour)
		s.wantState("1", order{Seen: []string{"message 1", "late orders"}})
		if r := s.recordOf("bills", "1"); string(r.State) != `{"Items":0,"Seen":["message 1"]}` {
			t.Errorf("bills has %s", r.State)
		}
		s.wantFailures(0)
	})
}

func TestATimeoutIsHandledAfterAnotherStart(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.start(timed().Handlers()...)
		s.handle(placeOrder{"1"})
		s.stop()
		sleep(2 * hour)
		s.start(timed().Handlers()...)
		s.wait()
		s.wantState("1", order{Seen: []string{"late 1"}})
	})
}

// timeoutOf are headers of a time-out.
func timeoutOf(kind, id, token string) []header.Field {
	return []header.Field{
		{Name: header.SagaType, Value: kind},
		{Name: header.SagaID, Value: id},
		{Name: header.IsSagaTimeout, Value: "True"},
		{Name: header.HoldfastSagaTimeout, Value: token},
	}
}

func TestForgedAndOddTimeouts(t *testing.T) {
	for name, test := range map[string]struct {
		headers []header.Field
		ignored saga.Ignored
		want    string // of the failure; "" for none
	}{
		"no token":            {timeoutOf("orders@sales", idOf("1"), ""), saga.IgnoredCancelled, ""},
		"a wrong token":       {timeoutOf("orders@sales", idOf("1"), "x"), saga.IgnoredCancelled, ""},
		"an unknown instance": {timeoutOf("orders@sales", idOf("2"), "x"), saga.IgnoredUnknown, ""},
		"an unknown saga":     {timeoutOf("removed@sales", idOf("1"), "x"), "", `the saga "removed@sales", and the endpoint has no such saga`},
		"no id":               {timeoutOf("orders@sales", "", "x"), "", "is no id"},
		"a damaged id":        {timeoutOf("orders@sales", strings.Repeat("x", 36), "x"), "", "is no id"},
		"an id of dashes":     {timeoutOf("orders@sales", strings.Repeat("-", 36), "x"), "", "is no id"},
		"no time-out":         {nil, "", "has no header NServiceBus.SagaId"},
		"a reply":             {timeoutOf("orders@sales", idOf("1"), "x")[:2], "", "the message is no time-out"},
	} {
		t.Run(name, func(t *testing.T) {
			inEachMode(t, func(t *testing.T, s *shop) {
				s.start(timed().Handlers()...)
				s.handle(placeOrder{"1"})
				s.put("Shop.OrderLate", `{"Note":"x"}`, test.headers...)
				failed := s.failures()
				if test.want == "" {
					s.wantFailures(0)
					s.wantIgnored(test.ignored)
				} else if len(failed) != 1 || !strings.Contains(failed[0], test.want) {
					t.Errorf("failures %q, want %q", failed, test.want)
				}
				sleep(2 * hour)
				s.wantState("1", order{Seen: []string{"late 1"}})
			})
		})
	}
}

// The id in the headers is that of an instance of another saga.
func TestATimeoutForAnotherSagaIsUnknown(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		carts := saga.New("carts", saga.Start(placeOrder.key, setting(hour)), saga.OnTimeout(late))
		s.start(slices.Concat(timed().Handlers(), carts.Handlers())...)
		s.handle(placeOrder{"1"})
		before := s.recordOf("carts", "1")
		s.put("Shop.OrderLate", `{"Note":"x"}`, timeoutOf("orders@sales", uuid.Text(saga.ID("sales", "carts", "1")), "x")...)
		s.wantFailures(0)
		if i := s.invocations(1)[0]; i.Ignored != saga.IgnoredUnknown {
			t.Errorf("the last invocation is %+v", i)
		}
		if after := s.recordOf("carts", "1"); !bytes.Equal(before.Meta, after.Meta) || !bytes.Equal(before.State, after.State) {
			t.Errorf("the record is %s %s, was %s %s", after.Meta, after.State, before.Meta, before.State)
		}
	})
}

// A time-out may pass its headers on: to a message for another saga, to the next time-out, and to
// the starter.
func TestATimeoutPassesItsHeadersOn(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		first := func(ctx context.Context, c *orderContext, _ placeOrder) error {
			return c.SetTimeout(ctx, "payment", orderLate{"1"}, endpoint.After(hour), endpoint.Header("Tenant", "acme"))
		}
		again := func(ctx context.Context, c *orderContext, m orderLate) error {
			c.State.Seen = append(c.State.Seen, m.Note+c.Header("Tenant"))
			if len(c.State.Seen) > 1 {
				return c.ReplyToStarter(ctx, orderDone{"1"}, endpoint.Headers(c.Headers()))
			}
			return errors.Join(c.SetTimeout(ctx, "payment", orderLate{"2"}, endpoint.After(hour), endpoint.Headers(c.Headers())),
				c.Send(ctx, addItem{"1"}, endpoint.Headers(c.Headers())))
		}
		other := saga.New("others", saga.Start(addKey, func(_ context.Context, c *orderContext, _ addItem) error {
			c.State.Seen = append(c.State.Seen, c.Header("Tenant"))
			return nil
		}))
		s.start(append(saga.New("orders", saga.Start(placeOrder.key, first), saga.OnTimeout(again)).Handlers(), other.Handlers()...)...)
		s.put("Shop.PlaceOrder", `{"ID":"1"}`)
		sleep(3 * hour)
		s.wantFailures(0)
		s.wantState("1", order{Seen: []string{"1acme", "2acme"}})
		if got := string(s.recordOf("others", "1").State); got != `{"Items":0,"Seen":["acme"]}` {
			t.Errorf("the state of the other saga is %s", got)
		}
		if sent := s.broker.Messages("client"); len(sent) != 1 || sent[0].Headers.Get(header.EnclosedMessageTypes) != "Shop.OrderDone" ||
			sent[0].Headers.Get(header.SagaID) != "" {
			t.Errorf("the client has %v", sent)
		}
	})
}

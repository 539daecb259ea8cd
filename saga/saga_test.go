package saga_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/saga"
	"github.com/holdfast-go/holdfast/transport"
)

func TestAnInstanceBeginsGoesOnAndEnds(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.start(orders().Handlers()...)
		s.handle(placeOrder{"1"}, addItem{"1"}, addItem{"1"})
		s.wantState("1", order{Items: 2, Seen: []string{"placed"}})
		if r := s.record("1"); r.Status != transport.RecordActive || r.Version != 3 || r.Name.Kind != "orders@sales" || r.Name.Key != "1" {
			t.Errorf("record %+v", r)
		}
		s.handle(closeOrder{"1"})
		if r := s.record("1"); r.Status != transport.RecordEnded || r.State != nil {
			t.Errorf("the record of the ended instance is %+v", r)
		}
		s.wantFailures(0)
		type seen struct{ New, Completed bool }
		var got []seen
		for _, i := range s.invocations(4) {
			got = append(got, seen{i.New, i.Completed})
		}
		if diff := cmp.Diff([]seen{{true, false}, {}, {}, {false, true}}, got); diff != "" {
			t.Error(diff)
		}
	})
}

func TestInstancesAreApart(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.start(orders().Handlers()...)
		odd := "1\x00'; --\n\u2028ß"
		long := strings.Repeat("k", 500)
		s.handle(placeOrder{"1"}, placeOrder{odd}, placeOrder{long}, addItem{odd}, addItem{long})
		s.wantState("1", order{Seen: []string{"placed"}})
		s.wantState(odd, order{Items: 1, Seen: []string{"placed"}})
		s.wantState(long, order{Items: 1, Seen: []string{"placed"}})
		s.wantFailures(0)
	})
}

// A second Start goes on with the instance.
func TestAStartGoesOnWithAnInstance(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.start(orders().Handlers()...)
		s.handle(placeOrder{"1"}, placeOrder{"1"})
		s.wantState("1", order{Seen: []string{"placed", "placed"}})
	})
}

func TestAMessageForAnUnknownInstanceFails(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.start(orders().Handlers()...)
		s.handle(addItem{"1"})
		failed := s.failures()
		if len(failed) != 1 || !strings.Contains(failed[0], `saga "orders", instance "1": there is no such instance`) {
			t.Errorf("failures %q", failed)
		}
		if stats := s.records(); stats.Active+stats.Ended != 0 {
			t.Errorf("there are records: %+v", stats)
		}
	})
}

func TestAMessageForAnUnknownInstanceIsRetried(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		cfg := s.config(orders().Handlers()...)
		cfg.Recoverability.Delayed = 3
		s.run(cfg)
		s.handle(addItem{"1"}, placeOrder{"1"})
		s.wait()
		for range 10 {
			s.wait()
		}
		s.wantState("1", order{Items: 1, Seen: []string{"placed"}})
		s.wantFailures(0)
	})
}

func TestOrElseHandlesMessagesForUnknownInstances(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		refuse := func(ctx context.Context, s *endpoint.Session, m addItem) error {
			return s.Reply(ctx, orderDone{"unknown " + m.ID})
		}
		shop := saga.New("orders", saga.Start(placeOrder.key, place), saga.On(addKey, add).OrElse(refuse),
			saga.On(closeKey, finish).OrElse(nil))
		s.start(shop.Handlers()...)
		s.put("Shop.AddItem", `{"ID":"1"}`)
		s.handle(closeOrder{"1"})
		s.wantFailures(0)
		replies := s.broker.Messages("client")
		if len(replies) != 1 || string(replies[0].Body) != `{"ID":"unknown 1"}` {
			t.Errorf("replies %v", replies)
		}
		for _, i := range s.invocations(2) {
			if i.Ignored != saga.IgnoredUnknown {
				t.Errorf("invocation %+v", i)
			}
		}
		s.handle(placeOrder{"1"}, addItem{"1"})
		s.wantState("1", order{Items: 1, Seen: []string{"placed"}})
	})
}

// OrElse returns another step.
func TestOrElseDoesNotChangeItsStep(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		step := saga.On(addKey, add)
		step.OrElse(nil)
		s.start(saga.New("orders", saga.Start(placeOrder.key, place), step).Handlers()...)
		s.handle(addItem{"1"})
		s.wantFailures(1)
	})
}

func TestMessagesForAnEndedInstanceAreIgnored(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.start(orders().Handlers()...)
		s.handle(placeOrder{"1"}, closeOrder{"1"}, addItem{"1"}, placeOrder{"1"}, closeOrder{"1"})
		s.wantFailures(0)
		if r := s.record("1"); r.Status != transport.RecordEnded || r.Version != 2 {
			t.Errorf("record %+v", r)
		}
		for _, i := range s.invocations(3) {
			if i.Ignored != saga.IgnoredEnded {
				t.Errorf("invocation %+v", i)
			}
		}
		if !strings.Contains(s.log.String(), "the instance has ended") {
			t.Errorf("the log has no line:\n%s", s.log)
		}
	})
}

func TestAnEndedInstanceIsForgottenAfterRemember(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		cfg := s.config(orders().Handlers()...)
		cfg.Remember = 48 * hour
		s.run(cfg)
		s.handle(placeOrder{"1"}, closeOrder{"1"})
		sleep(47 * hour)
		s.handle(placeOrder{"1"})
		if stats := s.records(); stats.Ended != 1 || stats.Active != 0 {
			t.Errorf("after 47 h: %+v", stats)
		}
		sleep(2 * hour)
		if stats := s.records(); stats.Ended != 0 {
			t.Errorf("after 49 h: %+v", stats)
		}
		s.handle(placeOrder{"1"})
		s.wantState("1", order{Seen: []string{"placed"}})
	})
}

func TestRestartsBeginsAnEndedInstanceAnew(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.start(orders().Restarts().Handlers()...)
		s.handle(placeOrder{"1"}, addItem{"1"}, closeOrder{"1"}, addItem{"1"}, placeOrder{"1"}, addItem{"1"})
		s.wantState("1", order{Items: 1, Seen: []string{"placed"}})
		s.wantFailures(0)
	})
}

func TestNothingIsRememberedWithNone(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		once := saga.New("orders", saga.Start(placeOrder.key, func(_ context.Context, c *orderContext, _ placeOrder) error {
			c.Complete()
			return nil
		}), saga.Start(addKey, add), saga.On(closeKey, finish))
		cfg := s.config(once.Handlers()...)
		cfg.Remember = endpoint.None
		s.run(cfg)
		s.handle(placeOrder{"1"}, addItem{"2"}, closeOrder{"2"})
		if stats := s.records(); stats.Active+stats.Ended != 0 {
			t.Errorf("there are records: %+v", stats)
		}
		s.wantFailures(0)
	})
}

func TestAnInstanceMayBeginAndEndInOneStep(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		once := saga.New("orders", saga.Start(placeOrder.key, func(_ context.Context, c *orderContext, _ placeOrder) error {
			c.Complete()
			return nil
		}))
		s.start(once.Handlers()...)
		s.handle(placeOrder{"1"}, placeOrder{"1"})
		if r := s.record("1"); r.Status != transport.RecordEnded || r.Version != 1 {
			t.Errorf("record %+v", r)
		}
	})
}

func TestAFailedStepStoresNothing(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		fail := func(ctx context.Context, c *orderContext, m addItem) error {
			c.State.Items = 99
			c.Complete()
			return errors.Join(c.Send(ctx, askStock(m)), errNo)
		}
		broken := func(context.Context, *orderContext, closeOrder) error { panic("broken") }
		s.start(saga.New("orders", saga.Start(placeOrder.key, place), saga.On(addKey, fail), saga.On(closeKey, broken)).Handlers()...)
		s.handle(placeOrder{"1"}, addItem{"1"}, closeOrder{"1"})
		s.wantState("1", order{Seen: []string{"placed"}})
		s.wantFailures(2)
		if n := len(s.broker.Messages("stock")); n != 0 {
			t.Errorf("%d messages were sent", n)
		}
	})
}

func TestAFailedStartLeavesNoInstance(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		fail := func(context.Context, *orderContext, placeOrder) error { return errNo }
		s.start(saga.New("orders", saga.Start(placeOrder.key, fail)).Handlers()...)
		s.handle(placeOrder{"1"})
		s.wantFailures(1)
		if stats := s.records(); stats.Active+stats.Ended != 0 {
			t.Errorf("there are records: %+v", stats)
		}
	})
}

func TestAnUnchangedStateIsNotWritten(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		look := func(ctx context.Context, c *orderContext, m addItem) error { return c.Send(ctx, askStock(m)) }
		s.start(saga.New("orders", saga.Start(placeOrder.key, place), saga.On(addKey, look)).Handlers()...)
		s.handle(placeOrder{"1"}, addItem{"1"})
		if r := s.record("1"); r.Version != 1 {
			t.Errorf("version %d after a step that changes nothing", r.Version)
		}
		if n := len(s.broker.Messages("stock")); n != 1 {
			t.Errorf("%d messages were sent", n)
		}
	})
}

// Two sagas and an ordinary handler of one message share its transaction.
func TestSeveralSagasHandleAMessage(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		bills := saga.New("bills", saga.Start(placeOrder.key, place))
		plain := 0
		handlers := append(orders().Handlers(), endpoint.Handle(func(context.Context, *endpoint.Session, placeOrder) error {
			plain++
			return nil
		}))
		s.start(append(handlers, bills.Handlers()...)...)
		s.handle(placeOrder{"1"})
		s.wantState("1", order{Seen: []string{"placed"}})
		if r := s.recordOf("bills", "1"); string(r.State) != `{"Items":0,"Seen":["placed"]}` {
			t.Errorf("bills has %s", r.State)
		}
		if plain != 1 {
			t.Errorf("the plain handler ran %d times", plain)
		}
	})
}

func TestAHandlerThatFailsUndoesTheStepsBeforeIt(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.start(append(orders().Handlers(), endpoint.Handle(func(context.Context, *endpoint.Session, addItem) error { return errNo }))...)
		s.handle(placeOrder{"1"}, addItem{"1"})
		s.wantState("1", order{Seen: []string{"placed"}})
		s.wantFailures(1)
	})
}

func TestMessagesForOneInstanceAreAllCounted(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		cfg := s.config(orders(saga.Start(func(m orderLate) string { return m.Note }, func(_ context.Context, c *orderContext, _ orderLate) error {
			c.State.Items++
			return nil
		})).Handlers()...)
		cfg.Concurrency = 16
		s.run(cfg)
		for range 200 {
			if err := s.SendLocal(t.Context(), orderLate{"1"}); err != nil {
				t.Fatal(err)
			}
		}
		sleep(hour)
		s.wantState("1", order{Items: 200})
		s.wantFailures(0)
	})
}

func TestWrongKeysFailWithoutARetry(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		invalid := func(addItem) string { return "a\xff" }
		none := func(closeOrder) string { panic("no key") }
		cfg := s.config(saga.New("orders", saga.Start(placeOrder.key, place), saga.On(invalid, add), saga.On(none, finish)).Handlers()...)
		cfg.Recoverability.Delayed = 3
		s.run(cfg)
		s.handle(placeOrder{""}, placeOrder{strings.Repeat("k", 501)}, placeOrder{strings.Repeat("k", 1<<20)}, addItem{"1"})
		failed := strings.Join(s.failures(), "\n")
		for _, want := range []string{"the key of the message is empty", "has 501 bytes", "has 1048576 bytes", `not valid UTF-8: "a\xff"`} {
			if !strings.Contains(failed, want) {
				t.Errorf("%q is not among the failures:\n%s", want, failed)
			}
		}
		s.wantFailures(4)
		s.handle(closeOrder{"1"})
		for range 60 {
			s.wait()
		}
		s.wantFailures(5)
	})
}

func TestMessagesNameTheInstanceThatSentThem(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		send := func(ctx context.Context, c *orderContext, m placeOrder) error {
			return errors.Join(c.Send(ctx, askStock(m)), c.Reply(ctx, orderDone(m)))
		}
		s.start(append(saga.New("orders", saga.Start(placeOrder.key, send)).Handlers(),
			endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m placeOrder) error {
				return s.Send(ctx, askStock{"plain"})
			}))...)
		s.put("Shop.PlaceOrder", `{"ID":"1"}`)
		for queue, n := range map[string]int{"stock": 2, "client": 1} {
			sent := s.broker.Messages(queue)
			if len(sent) != n {
				t.Fatalf("%d messages in %s, want %d", len(sent), queue, n)
			}
			got := []string{sent[0].Headers.Get(header.OriginatingSagaType), sent[0].Headers.Get(header.OriginatingSagaID)}
			if diff := cmp.Diff([]string{"orders@sales", idOf("1")}, got); diff != "" {
				t.Errorf("%s: %s", queue, diff)
			}
		}
		if h := s.broker.Messages("stock")[1].Headers; h.Get(header.OriginatingSagaID) != "" {
			t.Errorf("the message of a plain handler names %q", h.Get(header.OriginatingSagaID))
		}
	})
}

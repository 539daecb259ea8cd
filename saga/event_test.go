package saga_test

import (
	"context"
	"slices"
	"testing"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/saga"
)

// named is an interface of some messages.
type named interface{ key() string }

func (m *orderMoved) key() string { return m.ID }

// A handler of an interface, and one of a pointer, begin instances too.
func TestSagasHandleInterfacesPointersAndEvents(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		seen := func(_ context.Context, c *orderContext, m named) error {
			c.State.Seen = append(c.State.Seen, m.key())
			return nil
		}
		add := func(_ context.Context, c *orderContext, m *addItem) error {
			c.State.Items++
			return nil
		}
		s.start(saga.New("orders", saga.Start(named.key, seen), saga.On(func(m *addItem) string { return m.ID }, add)).Handlers()...)
		s.handle(placeOrder{"1"}, addItem{"1"})
		if err := s.Publish(t.Context(), orderMoved{"1"}); err != nil {
			t.Fatal(err)
		}
		s.wait()
		s.wantState("1", order{Items: 1, Seen: []string{"1", "1"}})
		s.wantFailures(0)
	})
}

// An event that a saga has published begins another saga, and a reply to it finds the first.
func TestAReplyToAnEventFindsTheInstanceThatPublishedIt(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		publish := func(ctx context.Context, c *orderContext, m placeOrder) error { return c.Publish(ctx, orderMoved(m)) }
		found := func(_ context.Context, c *orderContext, m stockFound) error {
			c.State.Items = m.N
			return nil
		}
		moved := func(ctx context.Context, c *orderContext, m *orderMoved) error {
			c.State.Seen = append(c.State.Seen, m.ID)
			return c.Reply(ctx, stockFound{7})
		}
		shop := saga.New("orders", saga.Start(placeOrder.key, publish), saga.OnReply(found))
		moves := saga.New("moves", saga.Start((*orderMoved).key, moved))
		s.start(append(shop.Handlers(), moves.Handlers()...)...)
		s.handle(placeOrder{"1"})
		s.wait()
		s.wantState("1", order{Items: 7})
		if r := s.recordOf("moves", "1"); string(r.State) != `{"Items":0,"Seen":["1"]}` {
			t.Errorf("the other saga has %s", r.State)
		}
		s.wantFailures(0)
	})
}

// A step that fails gets the message again, with the state as it was.
func TestAStepIsRetried(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		tries := 0
		fail := func(ctx context.Context, c *orderContext, m addItem) error {
			c.State.Items++
			if tries++; tries < 3 {
				return errNo
			}
			return nil
		}
		cfg := s.config(saga.New("orders", saga.Start(placeOrder.key, place), saga.On(addKey, fail)).Handlers()...)
		cfg.Recoverability.Delayed = 3
		s.run(cfg)
		s.handle(placeOrder{"1"}, addItem{"1"})
		sleep(hour)
		s.wantState("1", order{Items: 1, Seen: []string{"placed"}})
		s.wantFailures(0)
	})
}

// DoNotContinue of an earlier handler keeps a saga from being begun.
func TestDoNotContinueKeepsASagaFromBeginning(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		stop := endpoint.Handle(func(_ context.Context, s *endpoint.Session, _ placeOrder) error {
			s.DoNotContinue()
			return nil
		})
		s.start(append([]endpoint.Handler{stop}, orders().Handlers()...)...)
		s.handle(placeOrder{"1"})
		if stats := s.records(); stats.Active != 0 {
			t.Errorf("records %+v", stats)
		}
	})
}

// A message is handled once, also where it is delivered again.
func TestADuplicateChangesNothing(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		cfg := s.config(saga.New("orders", saga.Start(addKey, add)).Handlers()...)
		cfg.Remember = 48 * hour
		s.run(cfg)
		for range 3 {
			s.put("Shop.AddItem", `{"ID":"1"}`, header.Field{Name: "n", Value: "same"})
		}
		s.wantState("1", order{Items: 1})
		s.wantFailures(0)
	})
}

type (
	// placedEvent is a base type of orderPlaced.
	placedEvent struct{ ID string }
	orderPlaced struct{ ID string }
)

func (m *orderPlaced) placedKey() string { return m.ID }

// The Start of a message is called before the steps for its base type and for an interface, in each
// order of the steps.
func TestAStartIsCalledBeforeStepsOfABase(t *testing.T) {
	note := func(c *orderContext, text string) error {
		c.State.Seen = append(c.State.Seen, text)
		return nil
	}
	start := saga.Start(func(m orderPlaced) string { return m.ID },
		func(_ context.Context, c *orderContext, _ orderPlaced) error { return note(c, "start") })
	base := saga.On(func(m placedEvent) string { return m.ID },
		func(_ context.Context, c *orderContext, _ placedEvent) error { return note(c, "base") })
	iface := saga.On(func(m interface{ placedKey() string }) string { return m.placedKey() },
		func(_ context.Context, c *orderContext, _ interface{ placedKey() string }) error {
			return note(c, "interface")
		})
	for _, steps := range [][]saga.Step[order]{{start, base, iface}, {base, start, iface}, {base, iface, start}} {
		inEachMode(t, func(t *testing.T, s *shop) {
			cfg := s.config(saga.New("orders", steps...).Handlers()...)
			cfg.Messages = append(slices.Clip(cfg.Messages), endpoint.Command[placedEvent]("Shop.PlacedEvent"),
				endpoint.Command[orderPlaced]("Shop.OrderPlaced", "Shop.PlacedEvent").To("sales"))
			s.run(cfg)
			s.handle(orderPlaced{"1"})
			s.wantFailures(0)
			s.wantState("1", order{Seen: []string{"start", "base", "interface"}})
		})
	}
}

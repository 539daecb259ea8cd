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
)

// asking is a saga whose Start asks the endpoint "stock".
func asking() *saga.Saga[order] {
	ask := func(ctx context.Context, c *orderContext, m placeOrder) error { return c.Send(ctx, askStock(m)) }
	found := func(_ context.Context, c *orderContext, m stockFound) error {
		c.State.Items += m.N
		return nil
	}
	return saga.New("orders", saga.Start(placeOrder.key, ask), saga.OnReply(found), saga.On(closeKey, finish))
}

func replyTo(kind, id string) []header.Field {
	return []header.Field{{Name: header.SagaType, Value: kind}, {Name: header.SagaID, Value: id}}
}

func TestAReplyFindsTheInstanceThatAsked(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.start(asking().Handlers()...)
		s.handle(placeOrder{"1"}, placeOrder{"2"})
		stock := endpoint.Config{
			Name: "stock", Transport: s.broker, Install: true, Messages: messages,
			Handlers: []endpoint.Handler{endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m askStock) error {
				return s.Reply(ctx, stockFound{N: len(m.ID) + int(m.ID[0]-'0')})
			})},
		}
		(&shop{t: t}).run(stock)
		s.wait()
		s.wantState("1", order{Items: 2})
		s.wantState("2", order{Items: 3})
	})
}

// Endpoints of NServiceBus copy the headers as they are.
func TestRepliesAreFoundByTheirHeaders(t *testing.T) {
	for name, test := range map[string]struct {
		headers []header.Field
		want    string // of the failure; "" for none
	}{
		"the instance":        {replyTo("orders@sales", idOf("1")), ""},
		"upper case":          {replyTo("orders@sales", strings.ToUpper(idOf("1"))), ""},
		"no headers":          {nil, "has no header NServiceBus.SagaId"},
		"an unknown instance": {replyTo("orders@sales", idOf("2")), saga.ErrUnknownInstance.Error()},
		"an unknown saga":     {replyTo("Shop.OrderSaga, Shop", idOf("1")), "the endpoint has no such saga"},
	} {
		t.Run(name, func(t *testing.T) {
			inEachMode(t, func(t *testing.T, s *shop) {
				s.start(asking().Handlers()...)
				s.handle(placeOrder{"1"})
				s.put("Shop.StockFound", `{"N":4}`, test.headers...)
				if failed := s.failures(); test.want != "" && (len(failed) != 1 || !strings.Contains(failed[0], test.want)) {
					t.Errorf("failures %q, want %q", failed, test.want)
				}
				if test.want == "" {
					s.wantFailures(0)
					s.wantState("1", order{Items: 4})
				}
			})
		})
	}
}

func TestAReplyToAnEndedInstanceIsIgnored(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.start(asking().Handlers()...)
		s.handle(placeOrder{"1"}, closeOrder{"1"})
		s.put("Shop.StockFound", `{"N":4}`, replyTo("orders@sales", idOf("1"))...)
		s.wantFailures(0)
		if i := s.invocations(1)[0]; i.Ignored != saga.IgnoredEnded || i.Key != "1" {
			t.Errorf("invocation %+v", i)
		}
	})
}

func TestOrElseHandlesRepliesToUnknownInstances(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		n := 0
		orElse := func(_ context.Context, _ *endpoint.Session, m stockFound) error { n += m.N; return nil }
		s.start(saga.New("orders", saga.Start(placeOrder.key, place), saga.OnReply(func(context.Context, *orderContext, stockFound) error {
			return errNo
		}).OrElse(orElse)).Handlers()...)
		s.put("Shop.StockFound", `{"N":4}`, replyTo("orders@sales", idOf("1"))...)
		s.wantFailures(0)
		if n != 4 {
			t.Errorf("OrElse got %d", n)
		}
	})
}

// As in NServiceBus, the id counts more than the key, and a message with an id begins nothing.
func TestAnIDCountsMoreThanAKey(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.start(orders().Handlers()...)
		s.handle(placeOrder{"1"}, placeOrder{"2"})
		s.put("Shop.AddItem", `{"ID":"1"}`, replyTo("orders@sales", idOf("2"))...)
		s.put("Shop.AddItem", `{"ID":"1"}`, append(replyTo("other@sales", idOf("2")), header.Field{Name: "n", Value: "2"})...)
		s.wantState("1", order{Items: 1, Seen: []string{"placed"}})
		s.wantState("2", order{Items: 1, Seen: []string{"placed"}})
		s.put("Shop.PlaceOrder", `{"ID":"3"}`, replyTo("orders@sales", idOf("3"))...)
		if failed := s.failures(); len(failed) != 1 || !strings.Contains(failed[0], saga.ErrUnknownInstance.Error()) {
			t.Errorf("failures %q", failed)
		}
	})
}

func TestTheStarterGetsAReplyLater(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		done := func(ctx context.Context, c *orderContext, m closeOrder) error {
			c.Complete()
			return c.ReplyToStarter(ctx, orderDone(m), endpoint.Header("Colour", "red"))
		}
		s.start(saga.New("orders", saga.Start(placeOrder.key, place), saga.On(closeKey, done)).Handlers()...)
		s.put("Shop.PlaceOrder", `{"ID":"1"}`, header.Field{Name: header.CorrelationID, Value: "c-1"},
			header.Field{Name: header.OriginatingSagaID, Value: idOf("x")}, header.Field{Name: header.OriginatingSagaType, Value: "asking"})
		s.put("Shop.PlaceOrder", `{"ID":"2"}`)
		for _, id := range []string{"1", "2"} {
			s.put("Shop.CloseOrder", `{"ID":"`+id+`"}`, header.Field{Name: header.ReplyToAddress, Value: "other"},
				header.Field{Name: header.OriginatingSagaID, Value: idOf("y")}, header.Field{Name: header.OriginatingSagaType, Value: "closing"})
		}
		s.wantFailures(0)
		var got [][]string
		for _, m := range s.broker.Messages("client") {
			h := m.Headers
			got = append(got, []string{
				string(m.Body), h.Get(header.CorrelationID), h.Get(header.SagaID), h.Get(header.SagaType), h.Get("Colour"),
				h.Get(header.MessageIntent), h.Get(header.OriginatingSagaID),
			})
		}
		want := [][]string{
			{`{"ID":"1"}`, "c-1", idOf("x"), "asking", "red", "Reply", idOf("1")},
			{`{"ID":"2"}`, `m-Shop.PlaceOrder{"ID":"2"}`, "", "", "red", "Reply", idOf("2")},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})
}

func TestAStarterWithoutAnAddressGetsNoReply(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		var err, elsewhere error
		done := func(ctx context.Context, c *orderContext, m closeOrder) error {
			err = c.ReplyToStarter(ctx, orderDone(m))
			elsewhere = c.ReplyToStarter(ctx, orderDone(m), endpoint.To("client"))
			return nil
		}
		s.start(saga.New("orders", saga.Start(placeOrder.key, place), saga.On(closeKey, done)).Handlers()...)
		s.put("Shop.PlaceOrder", `{"ID":"1"}`, header.Field{Name: header.ReplyToAddress})
		s.handle(closeOrder{"1"})
		if err == nil || !strings.Contains(err.Error(), "no reply-to address") || elsewhere != nil {
			t.Errorf("errors %v and %v", err, elsewhere)
		}
		if n := len(s.broker.Messages("client")); n != 1 {
			t.Errorf("%d replies", n)
		}
	})
}

// A saga asks another one, which replies when it ends.
func TestASagaAsksAnother(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		ask := func(ctx context.Context, c *orderContext, m placeOrder) error {
			return c.SendLocal(ctx, addItem{"bill " + m.ID})
		}
		answered := func(_ context.Context, c *orderContext, m orderDone) error {
			c.State.Seen = append(c.State.Seen, m.ID)
			return nil
		}
		bill := func(ctx context.Context, c *orderContext, m addItem) error {
			return c.SetTimeout(ctx, "print", orderLate{m.ID}, endpoint.After(hour))
		}
		printed := func(ctx context.Context, c *orderContext, m orderLate) error {
			c.Complete()
			return errors.Join(c.ReplyToStarter(ctx, orderDone{c.Key()}))
		}
		shop := saga.New("orders", saga.Start(placeOrder.key, ask), saga.OnReply(answered))
		bills := saga.New("bills", saga.Start(addKey, bill), saga.OnTimeout(printed))
		s.start(append(shop.Handlers(), bills.Handlers()...)...)
		s.handle(placeOrder{"1"})
		sleep(2 * hour)
		s.wantState("1", order{Seen: []string{"bill 1"}})
		s.wantFailures(0)
	})
}

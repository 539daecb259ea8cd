package saga_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/saga"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// saving returns a handler of orders that overwrites the record of their instance.
func saving(with transport.Record) endpoint.Handler {
	return endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m placeOrder) error {
		tx, err := s.Tx(ctx)
		if err != nil {
			return err
		}
		store, _ := transport.TxOf[transport.StateStore](tx)
		r, err := store.Load(ctx, saga.ID("sales", "orders", m.ID), nil)
		if err != nil {
			return err
		}
		r.Status, r.State, r.Meta = with.Status, with.State, with.Meta
		return store.Save(ctx, r)
	})
}

func TestMistakesAreErrorsOfNew(t *testing.T) {
	type hidden struct{ Open, secret int }
	start := saga.Start(placeOrder.key, place)
	upgrade := func(old json.RawMessage) (json.RawMessage, error) { return old, nil }
	for name, test := range map[string]struct {
		handlers []endpoint.Handler
		want     string
	}{
		"two sagas of one name": {append(orders().Handlers(), orders().Handlers()...), "give each a name of its own"},
		"handlers twice": {func() []endpoint.Handler {
			s := orders()
			return append(s.Handlers(), s.Handlers()...)
		}(), "add each once"},
		"a step twice":           {saga.New("a", start, start).Handlers(), "it has two steps for saga_test.placeOrder, Start and Start"},
		"On and Start":           {saga.New("a", start, saga.On(func(m *placeOrder) string { return m.ID }, func(context.Context, *orderContext, *placeOrder) error { return nil })).Handlers(), "Start and On"},
		"two OnTimeout":          {saga.New("a", start, saga.OnTimeout(late), saga.OnTimeout(late)).Handlers(), "OnTimeout and OnTimeout"},
		"no Start":               {saga.New("a", saga.On(addKey, add)).Handlers(), "it has no Start"},
		"no step":                {saga.New[order]("a").Handlers(), `saga "a": it has no Start`},
		"nil steps":              {saga.New("a", start, nil, (*saga.MessageStep[order, addItem])(nil)).Handlers(), "step 1 is nil"},
		"a nil function":         {saga.New("a", start, saga.On[order](addKey, nil)).Handlers(), "On of saga_test.addItem: the function is nil"},
		"a nil key":              {saga.New("a", start, saga.On(nil, add)).Handlers(), "On of saga_test.addItem: the function of the key is nil"},
		"a nil time-out":         {saga.New("a", start, saga.OnTimeout[order, orderLate](nil)).Handlers(), "OnTimeout of saga_test.orderLate: the function is nil"},
		"no name":                {saga.New("", start).Handlers(), "the name is empty"},
		"a bad name":             {saga.New("a@b", start).Handlers(), "has a character"},
		"a long name":            {saga.New(strings.Repeat("n", 501), start).Handlers(), "501 bytes"},
		"a limit of 0":           {orders().StateLimit(0).Handlers(), "StateLimit(0): it must be positive"},
		"an Upgrade to 1":        {orders().Upgrade(1, upgrade).Handlers(), "Upgrade(1): the next version is 2"},
		"an Upgrade left out":    {orders().Upgrade(2, upgrade).Upgrade(4, upgrade).Handlers(), "Upgrade(4): the next version is 3"},
		"a nil Upgrade":          {orders().Upgrade(2, nil).Handlers(), "Upgrade(2): the function is nil"},
		"a pointer as state":     {saga.New("a", saga.Start(placeOrder.key, func(context.Context, *saga.Context[*order], placeOrder) error { return nil })).Handlers(), "its state is a *saga_test.order"},
		"a state that is hidden": {saga.New("a", saga.Start(placeOrder.key, func(context.Context, *saga.Context[hidden], placeOrder) error { return nil })).Handlers(), "JSON loses saga_test.hidden.secret: the field is not exported"},
		"a state without JSON":   {saga.New("a", saga.Start(placeOrder.key, func(context.Context, *saga.Context[chan int], placeOrder) error { return nil })).Handlers(), "encoding/json has no text for a chan int"},
		"an unknown message":     {saga.New("a", saga.Start(func(struct{ X int }) string { return "" }, func(context.Context, *orderContext, struct{ X int }) error { return nil })).Handlers(), "not registered"},
		"several, together":      {saga.New("", start, start, nil).Handlers(), "step 2 is nil"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := endpoint.New(endpoint.Config{
				Name: "sales", Transport: &inmemory.Transport{}, Outbox: &inmemory.Transport{}, Messages: messages, Handlers: test.handlers,
			})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("New: %v\nwant %q", err, test.want)
			}
		})
	}
	_ = hidden{}.secret
}

func TestASagaNeedsADatabase(t *testing.T) {
	_, err := endpoint.New(endpoint.Config{
		Name: "sales", Transport: &inmemory.Transport{}, Messages: messages, Handlers: orders().Handlers(),
	})
	if err == nil || !strings.Contains(err.Error(), "set Outbox, or Transactions to SendsAtomicWithReceive") {
		t.Errorf("New: %v", err)
	}
}

// The parts of a state that JSON loses are mistakes at any depth.
func TestLostPartsOfAStateAreErrorsOfNew(t *testing.T) {
	type (
		money   struct{ amount int }
		part    struct{ ID string }
		other   struct{ ID string }
		stamped struct {
			time.Time
			Note string
		}
	)
	_ = money{}.amount
	for want, handlers := range map[string][]endpoint.Handler{
		"stamped.Note: saga_test.stamped has the method MarshalJSON from its embedded field Time": stateOf[stamped](),
		".Lines[].amount: the field is not exported":                                              stateOf[struct{ Lines []money }](),
		".part.ID: another field has the same name": stateOf[struct {
			part
			other
		}](),
		".Extra: the type behind an interface is not stored":         stateOf[struct{ Extra any }](),
		".Err: encoding/json cannot decode into the interface error": stateOf[struct{ Err error }](),
	} {
		_, err := endpoint.New(endpoint.Config{
			Name: "sales", Transport: &inmemory.Transport{}, Outbox: &inmemory.Transport{}, Messages: messages, Handlers: handlers,
		})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New: %v\nwant %q", err, want)
		}
	}
}

// stateOf returns the handlers of a saga with the state S.
func stateOf[S any]() []endpoint.Handler {
	return saga.New("a", saga.Start(placeOrder.key, func(context.Context, *saga.Context[S], placeOrder) error { return nil })).Handlers()
}

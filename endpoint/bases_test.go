package endpoint_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

type (
	orderEvent     struct{ ID string }
	orderCancelled struct{ ID, Reason string }
)

func (m orderCancelled) About() string { return m.ID }
func (m *orderEvent) About() string    { return "base " + m.ID }

type aboutOrder interface{ About() string }

// heard is a handler that tells what it was called with.
func heard[M any](c *harness.Tally, tell func(M) string) endpoint.Handler {
	return endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m M) error {
		c.Add(tell(m))
		return nil
	})
}

func cancelling(broker transport.Transport, handlers ...endpoint.Handler) endpoint.Config {
	cfg := harness.Sales(broker, handlers...)
	cfg.Messages = append(cfg.Messages,
		endpoint.Event[orderCancelled]("Shop.OrderCancelled", "Shop.OrderEvent"), endpoint.Event[orderEvent]("Shop.OrderEvent"))
	return cfg
}

// Handlers of base types and interfaces are called in the order of the configuration.
func TestBaseHandlersRunInConfigOrder(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var c harness.Tally
		r := harness.Start(t, cancelling(broker,
			heard(&c, func(m aboutOrder) string { return "interface " + m.About() }),
			heard(&c, func(m *orderEvent) string { return "base " + m.ID }),
			heard(&c, func(m orderCancelled) string { return "own " + m.ID + " " + m.Reason }),
			heard(&c, func(m orderEvent) string { return "base again " + m.ID }),
			heard(&c, func(m harness.OrderPlaced) string { return "another" }),
			heard(&c, func(m any) string { _, ok := m.(*orderCancelled); return map[bool]string{true: "any"}[ok] }),
		))
		if err := r.Publish(t.Context(), orderCancelled{"7", "late"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		want := []string{"interface 7", "base 7", "own 7 late", "base again 7", "any"}
		if diff := cmp.Diff(want, c.List()); diff != "" {
			t.Error(diff)
		}
	})
}

// An endpoint subscribes to the types of its handlers of bases and interfaces.
func TestBaseHandlersSubscribe(t *testing.T) {
	for _, test := range []struct {
		name    string
		handler func(*harness.Tally) endpoint.Handler
		want    string
	}{
		{"base", func(c *harness.Tally) endpoint.Handler { return heard(c, func(m orderEvent) string { return m.ID }) }, "7"},
		{"interface", func(c *harness.Tally) endpoint.Handler { return heard(c, aboutOrder.About) }, "7"},
	} {
		t.Run(test.name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				var c harness.Tally
				harness.Start(t, cancelling(broker, test.handler(&c)))
				other := cancelling(broker)
				other.Name = "other"
				if err := harness.Start(t, other).Publish(t.Context(), orderCancelled{ID: "7"}); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if got := strings.Join(c.List(), ","); got != test.want {
					t.Errorf("handled %q, want %q", got, test.want)
				}
			})
		})
	}
}

// A type that this endpoint does not know, of .NET, with a base type that it does.
func TestAnUnknownTypeIsHandledAsItsFirstKnownBase(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var c harness.Tally
		harness.Start(t, cancelling(broker,
			heard(&c, func(m aboutOrder) string { return m.About() }),
			heard(&c, func(m orderEvent) string { return m.ID }),
			heard(&c, func(m orderCancelled) string { return "not this" })))
		put(t, broker, "Shop.OrderVanished, Shop, Version=1.0.0.0; Shop.OrderEvent, Shop", `{"ID":"7"}`)
		synctest.Wait()
		if diff := cmp.Diff([]string{"base 7", "7"}, c.List()); diff != "" {
			t.Error(diff)
		}
	})
}

// A body that does not fit a base type fails the message before any handler is called.
func TestABodyUnfitForABaseFailsBeforeAnyHandler(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		type numbered struct{ ID int }
		var c harness.Tally
		cfg := harness.Sales(broker,
			heard(&c, func(m harness.OrderPlaced) string { return m.ID }),
			heard(&c, func(m numbered) string { return "numbered" }))
		cfg.Messages = append(cfg.Messages, endpoint.Event[numbered]("Shop.Numbered"))
		harness.Start(t, cfg)
		put(t, broker, "Shop.OrderPlaced;Shop.Numbered", `{"ID":"7"}`)
		synctest.Wait()
		if got := broker.Messages("error"); len(got) != 1 || len(c.List()) != 0 {
			t.Errorf("%d in the error queue, handled %q", len(got), c.List())
		}
	})
}

func put(t *testing.T, broker *inmemory.Transport, types, body string) {
	t.Helper()
	if err := broker.Put("sales", native(types, "application/json", body)); err != nil {
		t.Fatal(err)
	}
}

func TestAnInvokeBehaviorSeesWhatItsHandlerIsCalledWith(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var seen harness.Tally
		cfg := cancelling(broker, heard(&harness.Tally{}, func(orderEvent) string { return "" }), heard(&harness.Tally{}, func(orderCancelled) string { return "" }))
		cfg.Pipeline.Invoke.Use("see", func(next pipeline.Func[*pipeline.Invoke]) pipeline.Func[*pipeline.Invoke] {
			return func(ctx context.Context, i *pipeline.Invoke) error {
				_, base := i.Value.(*orderEvent)
				_, own := i.Logical.Value.(*orderCancelled)
				seen.Add(map[bool]string{true: "base", false: "own"}[base] + map[bool]string{true: " of own"}[own])
				return next(ctx, i)
			}
		})
		if err := harness.Start(t, cfg).Publish(t.Context(), orderCancelled{ID: "7"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if diff := cmp.Diff([]string{"base of own", "own of own"}, seen.List()); diff != "" {
			t.Error(diff)
		}
	})
}

// New refuses a handler of an interface that no message implements.
func TestAHandledInterfaceNeedsAnImplementation(t *testing.T) {
	_, err := endpoint.New(harness.Sales(&inmemory.Transport{},
		heard(&harness.Tally{}, func(aboutOrder) string { return "" }), heard(&harness.Tally{}, func(*aboutOrder) string { return "" })))
	for _, want := range []string{"no message in Config.Messages implements it", "*endpoint_test.aboutOrder: not registered"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
}

func TestDoNotContinueLeavesOutTheHandlersThatFollow(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var c harness.Tally
		r := harness.Start(t, harness.Sales(broker,
			endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m harness.PlaceOrder) error {
				c.Add("first")
				s.DoNotContinue()
				return s.Send(ctx, harness.ShipOrder(m))
			}),
			heard(&c, func(harness.PlaceOrder) string { return "second" })))
		r.MustSend(harness.PlaceOrder{ID: "7"})
		synctest.Wait()
		if diff := cmp.Diff([]string{"first"}, c.List()); diff != "" {
			t.Error(diff)
		}
		if len(broker.Messages("shipping")) != 1 || len(broker.Messages("sales")) != 0 {
			t.Error("the message does not count as handled")
		}
	})
}

func TestDoNotContinueOfAHandlerThatFailedIsForgotten(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var c harness.Tally
		cfg := harness.Sales(broker,
			endpoint.Handle(func(_ context.Context, s *endpoint.Session, m harness.PlaceOrder) error {
				if c.Add("first") == 1 {
					s.DoNotContinue()
					return errors.New("no")
				}
				return nil
			}),
			heard(&c, func(harness.PlaceOrder) string { return "second" }))
		cfg.Pipeline.Invoke.Use("again", again)
		harness.Start(t, cfg).MustSend(harness.PlaceOrder{})
		time.Sleep(time.Minute)
		if diff := cmp.Diff([]string{"first", "first", "second"}, c.List()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestOneWithTypeNamesInAnyOrderCallsEachHandlerOnce(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var c harness.Tally
		harness.Start(t, cancelling(broker,
			heard(&c, func(m orderEvent) string { return "base" }),
			heard(&c, func(m aboutOrder) string { return m.About() }),
			heard(&c, func(m orderCancelled) string { return "own" })))
		put(t, broker, "Shop.OrderEvent;Shop.OrderCancelled;Shop.OrderEvent;Shop.OrderCancelled", `{"ID":"7"}`)
		synctest.Wait()
		if diff := cmp.Diff([]string{"base", "base 7", "own"}, c.List()); diff != "" {
			t.Error(diff)
		}
		if got := broker.Messages("error"); len(got) != 0 {
			t.Error(got[0].Headers.Get(header.ExceptionMessage))
		}
	})
}

// New refuses names by which no receiver would recognize a message.
func TestNewRefusesUnreadableTypeNames(t *testing.T) {
	for _, name := range []string{" Shop.ShipOrder", "Shop.ShipOrder ", "Shop.ShipOrder[", "Shop.Ship\xffOrder", "Shop.ShipOrder\u2003"} {
		for _, m := range []endpoint.Message{
			endpoint.Command[harness.ShipOrder](name), endpoint.Command[harness.ShipOrder](name, "Shop.Base"),
			endpoint.Event[harness.OrderPlaced]("Shop.Placed", name),
		} {
			_, err := endpoint.New(endpoint.Config{Name: "sales", Transport: &inmemory.Transport{}, Messages: []endpoint.Message{m}})
			if err == nil || !strings.Contains(err.Error(), "the type name") {
				t.Errorf("%q: %v", name, err)
			}
		}
	}
}

// box is a message whose .NET type is generic.
type box struct{ ID string }

// The full name of a generic .NET type has commas within its brackets.
func TestNamesOfGenericTypes(t *testing.T) {
	const name = "Shop.Box`1[[Shop.Order, Shop, Version=1.0.0.0, Culture=neutral, PublicKeyToken=null]]"
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var got harness.Tally
		cfg := harness.Sales(broker)
		cfg.Messages = append(cfg.Messages, endpoint.Command[box](name))
		cfg.Handlers = []endpoint.Handler{
			endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m box) error {
				got.Add(m.ID)
				return nil
			}),
		}
		r := harness.Start(t, cfg)
		put(t, broker, name+", Shop, Version=1.0.0.0, Culture=neutral, PublicKeyToken=null", `{"ID":"of .NET"}`)
		synctest.Wait() // the other message is handled after this one
		if err := r.SendLocal(t.Context(), box{"of Go"}); err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		if diff := cmp.Diff([]string{"of .NET", "of Go"}, got.List()); diff != "" {
			t.Error(diff)
		}
	})
}

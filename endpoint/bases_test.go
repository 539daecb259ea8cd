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
func heard[M any](c *tally, tell func(M) string) endpoint.Handler {
	return endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m M) error {
		c.add(tell(m))
		return nil
	})
}

func cancelling(broker transport.Transport, handlers ...endpoint.Handler) endpoint.Config {
	cfg := sales(broker, handlers...)
	cfg.Messages = append(cfg.Messages,
		endpoint.Event[orderCancelled]("Shop.OrderCancelled", "Shop.OrderEvent"), endpoint.Event[orderEvent]("Shop.OrderEvent"))
	return cfg
}

func TestHandlersOfBaseTypesAndInterfacesAreCalledInTheOrderOfTheConfig(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var c tally
		r := start(t, cancelling(broker,
			heard(&c, func(m aboutOrder) string { return "interface " + m.About() }),
			heard(&c, func(m *orderEvent) string { return "base " + m.ID }),
			heard(&c, func(m orderCancelled) string { return "own " + m.ID + " " + m.Reason }),
			heard(&c, func(m orderEvent) string { return "base again " + m.ID }),
			heard(&c, func(m orderPlaced) string { return "another" }),
			heard(&c, func(m any) string { _, ok := m.(*orderCancelled); return map[bool]string{true: "any"}[ok] }),
		))
		if err := r.Publish(t.Context(), orderCancelled{"7", "late"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		want := []string{"interface 7", "base 7", "own 7 late", "base again 7", "any"}
		if diff := cmp.Diff(want, c.list()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestAnEndpointSubscribesToWhatItsHandlersOfBasesAndInterfacesWant(t *testing.T) {
	for _, test := range []struct {
		name    string
		handler func(*tally) endpoint.Handler
		want    string
	}{
		{"base", func(c *tally) endpoint.Handler { return heard(c, func(m orderEvent) string { return m.ID }) }, "7"},
		{"interface", func(c *tally) endpoint.Handler { return heard(c, aboutOrder.About) }, "7"},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
				var c tally
				start(t, cancelling(broker, test.handler(&c)))
				other := cancelling(broker)
				other.Name = "other"
				if err := start(t, other).Publish(t.Context(), orderCancelled{ID: "7"}); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if got := strings.Join(c.list(), ","); got != test.want {
					t.Errorf("handled %q, want %q", got, test.want)
				}
			})
		})
	}
}

// A type that this endpoint does not know, of .NET, with a base type that it does.
func TestAMessageOfAnUnknownTypeIsHandledAsItsFirstKnownBase(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var c tally
		start(t, cancelling(broker,
			heard(&c, func(m aboutOrder) string { return m.About() }),
			heard(&c, func(m orderEvent) string { return m.ID }),
			heard(&c, func(m orderCancelled) string { return "not this" })))
		put(t, broker, "Shop.OrderVanished, Shop, Version=1.0.0.0; Shop.OrderEvent, Shop", `{"ID":"7"}`)
		synctest.Wait()
		if diff := cmp.Diff([]string{"base 7", "7"}, c.list()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestABodyThatIsNoneOfABaseTypeFailsBeforeAnyHandler(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		type numbered struct{ ID int }
		var c tally
		cfg := sales(broker,
			heard(&c, func(m orderPlaced) string { return m.ID }),
			heard(&c, func(m numbered) string { return "numbered" }))
		cfg.Messages = append(cfg.Messages, endpoint.Event[numbered]("Shop.Numbered"))
		start(t, cfg)
		put(t, broker, "Shop.OrderPlaced;Shop.Numbered", `{"ID":"7"}`)
		synctest.Wait()
		if got := broker.Messages("error"); len(got) != 1 || len(c.list()) != 0 {
			t.Errorf("%d in the error queue, handled %q", len(got), c.list())
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
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var seen tally
		cfg := cancelling(broker, heard(&tally{}, func(orderEvent) string { return "" }), heard(&tally{}, func(orderCancelled) string { return "" }))
		cfg.Pipeline.Invoke.Use("see", func(next pipeline.Func[*pipeline.Invoke]) pipeline.Func[*pipeline.Invoke] {
			return func(ctx context.Context, i *pipeline.Invoke) error {
				_, base := i.Value.(*orderEvent)
				_, own := i.Logical.Value.(*orderCancelled)
				seen.add(map[bool]string{true: "base", false: "own"}[base] + map[bool]string{true: " of own"}[own])
				return next(ctx, i)
			}
		})
		if err := start(t, cfg).Publish(t.Context(), orderCancelled{ID: "7"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if diff := cmp.Diff([]string{"base of own", "own of own"}, seen.list()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestAHandlerOfAnInterfaceThatNobodyImplementsIsAMistake(t *testing.T) {
	_, err := endpoint.New(sales(&inmemory.Transport{},
		heard(&tally{}, func(aboutOrder) string { return "" }), heard(&tally{}, func(*aboutOrder) string { return "" })))
	for _, want := range []string{"no message in Config.Messages implements it", "*endpoint_test.aboutOrder: not registered"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
}

func TestDoNotContinueLeavesOutTheHandlersThatFollow(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var c tally
		r := start(t, sales(broker,
			endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m placeOrder) error {
				c.add("first")
				s.DoNotContinue()
				return s.Send(ctx, shipOrder(m))
			}),
			heard(&c, func(placeOrder) string { return "second" })))
		r.send(placeOrder{ID: "7"})
		synctest.Wait()
		if diff := cmp.Diff([]string{"first"}, c.list()); diff != "" {
			t.Error(diff)
		}
		if len(broker.Messages("shipping")) != 1 || len(broker.Messages("sales")) != 0 {
			t.Error("the message does not count as handled")
		}
	})
}

func TestDoNotContinueOfAHandlerThatFailedIsForgotten(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var c tally
		cfg := sales(broker,
			endpoint.Handle(func(_ context.Context, s *endpoint.Session, m placeOrder) error {
				if c.add("first") == 1 {
					s.DoNotContinue()
					return errors.New("no")
				}
				return nil
			}),
			heard(&c, func(placeOrder) string { return "second" }))
		cfg.Pipeline.Invoke.Use("again", again)
		start(t, cfg).send(placeOrder{})
		time.Sleep(time.Minute)
		if diff := cmp.Diff([]string{"first", "first", "second"}, c.list()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestOneWithTypeNamesInAnyOrderCallsEachHandlerOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var c tally
		start(t, cancelling(broker,
			heard(&c, func(m orderEvent) string { return "base" }),
			heard(&c, func(m aboutOrder) string { return m.About() }),
			heard(&c, func(m orderCancelled) string { return "own" })))
		put(t, broker, "Shop.OrderEvent;Shop.OrderCancelled;Shop.OrderEvent;Shop.OrderCancelled", `{"ID":"7"}`)
		synctest.Wait()
		if diff := cmp.Diff([]string{"base", "base 7", "own"}, c.list()); diff != "" {
			t.Error(diff)
		}
		if got := broker.Messages("error"); len(got) != 0 {
			t.Error(got[0].Headers.Get(header.ExceptionMessage))
		}
	})
}

package endpoint_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// concreteBroker is a broker whose events may be published under their concrete type alone.
type concreteBroker struct {
	*inmemory.Transport
	derived    bool
	subscribed []string
}

func (b *concreteBroker) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	conn, err := b.Transport.Open(ctx, env)
	if err != nil {
		return nil, err
	}
	return &concreteConn{conn, conn.(transport.Installer), conn.(transport.Subscriber), b}, nil
}

type concreteConn struct {
	transport.Conn
	transport.Installer
	transport.Subscriber
	broker *concreteBroker
}

func (c *concreteConn) SubscribesDerived() bool { return c.broker.derived }

func (c *concreteConn) Subscribe(ctx context.Context, queue string, types []string) error {
	c.broker.subscribed = append(c.broker.subscribed, types...)
	return c.Subscriber.Subscribe(ctx, queue, types)
}

type (
	iOrder      struct{}
	amended     struct{}
	archived    struct{}
	billing     struct{}
	iOrderQuery struct{}
)

// hierarchy has handlers of two base types, of which one has derived events, and of an ordinary
// event.
func hierarchy(broker transport.Transport) endpoint.Config {
	cfg := harness.Sales(broker,
		heard(&harness.Tally{}, func(orderEvent) string { return "" }),
		heard(&harness.Tally{}, func(iOrder) string { return "" }),
		heard(&harness.Tally{}, func(billing) string { return "" }))
	cfg.Messages = append(cfg.Messages,
		endpoint.Event[orderEvent]("Shop.OrderEvent"),
		endpoint.Event[iOrder]("Shop.Orders+IOrder"),
		endpoint.Event[billing]("Shop.Iberia"),
		endpoint.Event[orderCancelled]("Shop.OrderCancelled", "Shop.OrderEvent"),
		endpoint.Event[amended]("Shop.OrderAmended", "Shop.OrderChanged", "Shop.OrderEvent"),
		endpoint.Event[archived]("Shop.OrderArchived", "Shop.OrderEvent").WithoutSubscription(),
		endpoint.Command[iOrderQuery]("Shop.Query", "Shop.Orders+IOrder"))
	return cfg
}

// If the transport needs derived types, a handler of a base type subscribes to each derived
// type.
func TestABaseHandlerSubscribesToDerivedTypes(t *testing.T) {
	handled := []string{"Shop.OrderEvent", "Shop.Orders+IOrder", "Shop.Iberia"}
	for derived, want := range map[bool][]string{
		false: handled,
		true:  append(slices.Clone(handled), "Shop.OrderCancelled", "Shop.OrderAmended"),
	} {
		harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
			b := &concreteBroker{Transport: broker, derived: derived}
			harness.Start(t, hierarchy(b)).End()
			if diff := cmp.Diff(want, b.subscribed); diff != "" {
				t.Errorf("derived: %v (-want +got):\n%s", derived, diff)
			}
		})
	}
}

// If the transport needs derived types, a base type without a registered derived event is a
// warning.
func TestABaseWithoutDerivedEventsIsAWarning(t *testing.T) {
	for derived, want := range map[bool]int{false: 0, true: 1} {
		harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
			var log strings.Builder
			cfg := hierarchy(&concreteBroker{Transport: broker, derived: derived})
			cfg.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
			harness.Start(t, cfg).End()
			if got := strings.Count(log.String(), "no registered event has this base type"); got != want {
				t.Errorf("derived: %v: %d warnings, want %d:\n%s", derived, got, want, log.String())
			}
			if derived && !strings.Contains(log.String(), "base=Shop.Orders+IOrder") {
				t.Errorf("the warning does not name the type:\n%s", log.String())
			}
		})
	}
}

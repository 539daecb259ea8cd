package saga_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/saga"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

type (
	placeOrder struct{ ID string }
	addItem    struct{ ID string }
	closeOrder struct{ ID string }
	orderLate  struct{ Note string }
	askStock   struct{ ID string }
	stockFound struct{ N int }
	orderDone  struct{ ID string }
	orderMoved struct{ ID string }
)

func (m placeOrder) key() string { return m.ID }

// order is the state of the saga in these tests.
type order struct {
	Items int
	Seen  []string `json:",omitempty"`
}

type orderContext = saga.Context[order]

var messages = []endpoint.Message{
	endpoint.Command[placeOrder]("Shop.PlaceOrder").To("sales"),
	endpoint.Command[addItem]("Shop.AddItem").To("sales"),
	endpoint.Command[closeOrder]("Shop.CloseOrder").To("sales"),
	endpoint.Command[orderLate]("Shop.OrderLate").To("sales"),
	endpoint.Command[askStock]("Shop.AskStock").To("stock"),
	endpoint.Response[stockFound]("Shop.StockFound"),
	endpoint.Response[orderDone]("Shop.OrderDone"),
	endpoint.Event[orderMoved]("Shop.OrderMoved"),
}

// shop is a broker with an endpoint "sales" on it.
type shop struct {
	*endpoint.Endpoint

	t      *testing.T
	broker *inmemory.Transport
	db     *inmemory.Transport // that has the records
	log    *harness.Log

	mu   sync.Mutex
	seen []saga.Invocation
	stop func()
}

// inEachMode runs f with an outbox and in the mode SendsAtomicWithReceive, in a bubble each.
func inEachMode(t *testing.T, f func(t *testing.T, s *shop)) {
	t.Helper()
	for name, atomic := range map[string]bool{"outbox": false, "atomic": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &shop{t: t, broker: &inmemory.Transport{}}
				s.broker.CreateQueues("stock", "client", "error")
				if s.db = s.broker; !atomic {
					s.db = &inmemory.Transport{}
				}
				f(t, s)
			})
		})
	}
}

// config is the configuration of sales.
func (s *shop) config(handlers ...endpoint.Handler) endpoint.Config {
	s.log = &harness.Log{}
	cfg := endpoint.Config{
		Name: "sales", Transport: s.broker, Messages: messages, Handlers: handlers, Install: true,
		Recoverability: recoverability.Config{Immediate: recoverability.None, Delayed: recoverability.None},
		Logger:         slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	if cfg.Outbox = s.db; s.db == s.broker {
		cfg.Outbox, cfg.Transactions = nil, endpoint.SendsAtomicWithReceive
	}
	cfg.Pipeline.Dispatch.Use("record", func(next pipeline.Func[*pipeline.Dispatch]) pipeline.Func[*pipeline.Dispatch] {
		return func(ctx context.Context, d *pipeline.Dispatch) error {
			err := next(ctx, d)
			if err == nil && d.Incoming != nil {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.seen = append(s.seen, saga.Invocations(d.Incoming)...)
			}
			return err
		}
	})
	return cfg
}

// start runs sales with handlers.
func (s *shop) start(handlers ...endpoint.Handler) { s.t.Helper(); s.run(s.config(handlers...)) }

func (s *shop) run(cfg endpoint.Config) {
	s.t.Helper()
	r := harness.Start(s.t, cfg)
	s.Endpoint, s.stop = r.Endpoint, r.End
}

// handle sends messages one after the other, and waits until each was handled.
func (s *shop) handle(all ...any) {
	s.t.Helper()
	for _, m := range all {
		if err := s.SendLocal(s.t.Context(), m); err != nil {
			s.t.Fatal(err)
		}
		s.wait()
	}
}

// wait waits until messages were handled and the relay of an outbox has sent others.
func (s *shop) wait() { sleep(2 * time.Second) }

// put delivers a message with headers.
func (s *shop) put(kind, body string, headers ...header.Field) {
	s.t.Helper()
	h := header.New(append([]header.Field{
		{Name: header.MessageID, Value: "m-" + body},
		{Name: header.EnclosedMessageTypes, Value: kind},
		{Name: header.ReplyToAddress, Value: "client"},
	}, headers...)...)
	err := s.broker.Put("sales", &transport.Message{ID: "m-" + kind + body + h.Get("n"), Headers: h, Body: []byte(body)})
	if err != nil {
		s.t.Fatal(err)
	}
	s.wait()
}

// invocations returns the last n invocations.
func (s *shop) invocations(n int) []saga.Invocation {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.seen) < n {
		s.t.Fatalf("%d invocations, want at least %d", len(s.seen), n)
	}
	return s.seen[len(s.seen)-n:]
}

// failures returns the errors of messages in the error queue.
func (s *shop) failures() (all []string) {
	for _, m := range s.broker.Messages("error") {
		all = append(all, m.Headers.Get(header.ExceptionMessage))
	}
	return all
}

// record returns the record of an instance of the saga "orders".
func (s *shop) record(key string) transport.Record { s.t.Helper(); return s.recordOf("orders", key) }

func (s *shop) recordOf(name, key string) transport.Record {
	s.t.Helper()
	r, err := s.inspector().Record(s.t.Context(), saga.ID("sales", name, key))
	if err != nil {
		s.t.Fatalf("record of %s %q: %v", name, key, err)
	}
	return r
}

// records returns the number of records of the saga "orders".
func (s *shop) records() transport.RecordStats {
	s.t.Helper()
	stats, err := s.inspector().InspectRecords(s.t.Context(), "orders@sales")
	if err != nil {
		s.t.Fatal(err)
	}
	return stats
}

func (s *shop) inspector() transport.StateInspector {
	s.t.Helper()
	conn, err := s.db.Open(s.t.Context(), transport.Env{Logger: slog.New(slog.DiscardHandler), Endpoint: "test"})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			s.t.Error(err)
		}
	})
	return conn.(transport.StateInspector)
}

// state returns the state of an instance of the saga "orders".
func (s *shop) state(key string) (o order) {
	s.t.Helper()
	if err := json.Unmarshal(s.record(key).State, &o); err != nil {
		s.t.Fatal(err)
	}
	return o
}

func (s *shop) wantState(key string, want order) {
	s.t.Helper()
	if diff := cmp.Diff(want, s.state(key)); diff != "" {
		s.t.Errorf("state of %q (-want +got):\n%s", key, diff)
	}
}

func (s *shop) wantFailures(n int) {
	s.t.Helper()
	if failed := s.failures(); len(failed) != n {
		s.t.Errorf("%d failures, want %d: %q\n%s", len(failed), n, failed, s.log)
	}
}

// place, add and finish are steps of the saga "orders".
func place(_ context.Context, c *orderContext, _ placeOrder) error {
	c.State.Seen = append(c.State.Seen, "placed")
	return nil
}

func add(_ context.Context, c *orderContext, _ addItem) error {
	c.State.Items++
	return nil
}

func finish(_ context.Context, c *orderContext, _ closeOrder) error {
	c.Complete()
	return nil
}

func addKey(m addItem) string      { return m.ID }
func closeKey(m closeOrder) string { return m.ID }

// orders is a saga of these steps and others.
func orders(more ...saga.Step[order]) *saga.Saga[order] {
	return saga.New("orders", append([]saga.Step[order]{
		saga.Start(placeOrder.key, place), saga.On(addKey, add), saga.On(closeKey, finish),
	}, more...)...)
}

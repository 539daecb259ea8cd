package drivertests

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/serialization"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
	"github.com/holdfast-go/holdfast/transport/postgres"
)

// patience bounds each wait: the end of a test that hangs.
const patience = 3 * time.Minute

// order is a command and placed an event. Their bodies are sent as they are.
type (
	order  struct{ Body []byte }
	placed struct{ Body []byte }
)

// asItIs is a serializer of bytes.
type asItIs struct{}

func (asItIs) ContentType() string { return "application/octet-stream" }

func (asItIs) Marshal(v any) ([]byte, error) {
	switch v := v.(type) {
	case order:
		return v.Body, nil
	case placed:
		return v.Body, nil
	}
	return nil, errors.New("no bytes")
}

func (asItIs) Unmarshal([]byte, any) error { return errors.New("nothing is received") }

var _ serialization.Serializer = asItIs{}

// shop is an endpoint "web" with an outbox on PostgreSQL, and the broker's queue "orders", which it
// sends to.
type shop struct {
	testing.TB

	url  string // of the database
	web  *endpoint.Endpoint
	from transport.Receiver // of the queue "orders"
}

func newShop(t testing.TB) *shop {
	t.Helper()
	return openShop(t, brokertest.Postgres(t), &postgres.Transport{})
}

// openShop starts the endpoint with an outbox as configured in database, on the database of url
// unless it has one.
func openShop(t testing.TB, url string, database *postgres.Transport) *shop {
	t.Helper()
	if database.URL == "" {
		database.URL = url
	}
	broker := &inmemory.Transport{}
	conn, err := broker.Open(t.Context(), transport.Env{})
	must(t, err)
	must(t, conn.(transport.Installer).Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: "orders"}}}))
	must(t, conn.(transport.Subscriber).Subscribe(t.Context(), "orders", []string{"Shop.Placed"}))
	from, err := conn.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: "orders"})
	must(t, err)
	s := &shop{TB: t, url: url, from: from, web: startWeb(t, broker, database)}
	admin := openPgx(0)(t, url)
	defer admin.Close()
	_, err = admin.ExecContext(t.Context(), `CREATE TABLE IF NOT EXISTS rows (n int)`)
	must(t, err)
	return s
}

// startWeb runs an instance of the endpoint until the test ends.
func startWeb(t testing.TB, broker, outbox transport.Transport) *endpoint.Endpoint {
	t.Helper()
	e, err := endpoint.New(endpoint.Config{
		Name: "web", Transport: broker, Outbox: outbox, SendOnly: true, Install: true, Concurrency: 1,
		Messages:       []endpoint.Message{endpoint.Command[order]("Shop.Order").To("orders"), endpoint.Event[placed]("Shop.Placed")},
		Serializers:    []serialization.Serializer{asItIs{}},
		Recoverability: recoverability.Config{ErrorQueue: "error"},
		Logger:         slog.New(slog.DiscardHandler),
	})
	must(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	must(t, e.WaitReady(t.Context()))
	return e
}

// in returns the shop for a subtest.
func (s *shop) in(t testing.TB) *shop {
	sub := *s
	sub.TB = t
	return &sub
}

// begin begins a transaction that is rolled back at the end of the test.
func (s *shop) begin(of library, opts *sql.TxOptions) usersTx {
	s.Helper()
	tx, err := of(s.Context(), opts)
	must(s, err)
	s.Cleanup(func() { _ = tx.rollback() })
	return tx
}

// send sends an order with this body in a transaction.
func (s *shop) send(tx any, body string, opts ...endpoint.SendOption) error {
	return s.web.Send(s.Context(), order{[]byte(body)}, append(opts, endpoint.In(tx))...)
}

// receive returns the next n messages that arrive, in order.
func (s *shop) receive(n int) (all []*transport.Message) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	for len(all) < n {
		ds, err := s.from.Receive(ctx, n-len(all))
		if err != nil {
			s.Fatalf("%d of %d messages have arrived: %v", len(all), n, err)
		}
		for _, d := range ds {
			all = append(all, d.Message())
			must(s, d.Complete(s.Context()))
		}
	}
	return all
}

// arrives checks that exactly the messages with these bodies arrive, and then a message that
// arrives sends. A message that was inserted more than 250 ms before its commit may be overtaken,
// so the order is not compared.
func (s *shop) arrives(of library, bodies ...string) {
	s.Helper()
	var got []string
	for _, m := range s.receive(len(bodies)) {
		got = append(got, string(m.Body))
	}
	slices.Sort(got)
	if want := slices.Sorted(slices.Values(bodies)); !slices.Equal(got, want) {
		s.Fatalf("%.50q have arrived, want %.50q", got, want)
	}
	last := s.begin(of, nil)
	must(s, s.send(last.tx, "last"))
	must(s, last.commit())
	if m := s.receive(1)[0]; string(m.Body) != "last" {
		s.Fatalf("the message after the others is %.50q, want the last", m.Body)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

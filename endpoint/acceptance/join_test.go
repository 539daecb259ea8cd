package acceptance_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
	"github.com/holdfast-go/holdfast/transport/postgres"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

// usersTx is a transaction as a program begins it.
type usersTx struct {
	tx               any
	commit, rollback func() error
}

// joinable is a store with a transport, and how its users begin transactions.
type joinable struct {
	transport func() transport.Transport
	begin     func() usersTx
}

var joinables = map[string]func(t *testing.T) joinable{"sqlite": sqliteJoinable, "postgres": postgresJoinable}

func sqliteJoinable(t *testing.T) joinable {
	path := filepath.Join(t.TempDir(), "shop.db")
	db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_busy_timeout=20000")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return joinable{
		func() transport.Transport { return &sqlite.Transport{Path: path} },
		func() usersTx {
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			return usersTx{tx, tx.Commit, tx.Rollback}
		},
	}
}

func postgresJoinable(t *testing.T) joinable {
	url := brokertest.Postgres(t)
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return joinable{
		func() transport.Transport { return &postgres.Transport{URL: url} },
		func() usersTx {
			tx, err := pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return usersTx{
				tx,
				func() error { return tx.Commit(t.Context()) },
				func() error { return tx.Rollback(t.Context()) },
			}
		},
	}
}

// Messages that are sent in a transaction of the program arrive if the program commits, and only
// then.
func TestUserTransaction(t *testing.T) {
	onBrokers(t, []string{"postgres"}, []string{"sqlite"}, func(t *testing.T, name string) {
		store := joinables[name](t)
		got := newInbox()
		start(t, sales(store.transport(), got.orders(), got.events()))
		web := sales(store.transport())
		web.Name, web.SendOnly, web.Install = "web", true, false
		sender := start(t, web)
		undone := store.begin()
		sender.send(placeOrder{"undone"}, endpoint.In(undone.tx))
		must(t, sender.Publish(t.Context(), orderPlaced{"undone"}, endpoint.In(undone.tx)))
		must(t, undone.rollback())
		done := store.begin()
		var receipt transport.Receipt
		sender.send(placeOrder{"1"}, endpoint.In(done.tx))
		sender.send(placeOrder{"2"}, endpoint.In(done.tx), endpoint.After(50*time.Millisecond))
		sender.send(placeOrder{"never"}, endpoint.In(done.tx), endpoint.After(time.Hour), endpoint.ReceiptIn(&receipt))
		must(t, sender.Publish(t.Context(), orderPlaced{"3"}, endpoint.In(done.tx)))
		must(t, done.commit())
		must(t, sender.Cancel(t.Context(), receipt))
		want := map[string]bool{"order 1": true, "order 2": true, "event 3": true}
		for range want {
			if s := got.next(t); !want[s] {
				t.Errorf("handled %s", s)
			}
		}
	})
}

// inbox is what handlers were called with.
type inbox chan string

func newInbox() inbox { return make(inbox, 100) }

func (in inbox) orders() endpoint.Handler {
	return endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m placeOrder) error {
		in <- "order " + m.ID
		return nil
	})
}

func (in inbox) events() endpoint.Handler {
	return endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m orderPlaced) error {
		in <- "event " + m.ID
		return nil
	})
}

func (in inbox) next(t *testing.T) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeLimit)
	defer cancel()
	select {
	case s := <-in:
		return s
	case <-ctx.Done():
		t.Fatal("nothing was handled")
		return ""
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// What goes wrong with In is said before anything is sent, and the transaction is not touched.
func TestInSaysWhyItCannotBeUsed(t *testing.T) {
	t.Parallel()
	store := sqliteJoinable(t)
	sender := start(t, sales(store.transport()))
	memory := start(t, sales(&inmemory.Transport{}))
	tx := store.begin()
	var noTx *sql.Tx
	var noPgxTx pgx.Tx
	for _, c := range []struct {
		from *running
		tx   any
		want string
	}{
		{sender, nil, "the transaction of In is nil: begin it first"},
		{sender, noTx, "the transaction of In is nil: begin it first"},
		{sender, noPgxTx, "the transaction of In is nil: begin it first"},
		{sender, "tx", "it is a string: want a *sql.Tx"},
		{sender, &tx, "it is a *acceptance_test.usersTx: want a *sql.Tx"},
		{memory, tx.tx, "neither the transport nor an outbox can send in a database transaction: set Config.Outbox, or commit first"},
		{memory, nil, "neither the transport nor an outbox can send in a database transaction: set Config.Outbox, or commit first"},
	} {
		err := c.from.Send(t.Context(), placeOrder{"1"}, endpoint.In(c.tx))
		if err == nil || !strings.HasPrefix(err.Error(), "send Shop.PlaceOrder: ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("In(%T): error %v, want %q in it", c.tx, err, c.want)
		}
	}
	must(t, tx.commit())
}

func TestWithinAHandlerInIsRefused(t *testing.T) {
	t.Parallel()
	store := sqliteJoinable(t)
	refused := make(chan error, 2)
	e := start(t, sales(store.transport(), endpoint.Handle(
		func(ctx context.Context, s *endpoint.Session, _ placeOrder) error {
			refused <- s.Send(ctx, shipOrder{}, endpoint.In("tx"))
			refused <- s.Send(ctx, shipOrder{}, endpoint.In(nil), endpoint.Immediately())
			return nil
		})))
	e.send(placeOrder{"1"})
	for range 2 {
		if err := <-refused; err == nil || !strings.Contains(err.Error(), "In is for sends outside handlers") {
			t.Errorf("error %v, want that In is for sends outside handlers", err)
		}
	}
}

// Behaviors see the transaction, and what they add to a dispatch leaves in it too.
func TestBehaviorsSeeTheTransactionAndAddToIt(t *testing.T) {
	t.Parallel()
	store := sqliteJoinable(t)
	got := newInbox()
	cfg := sales(store.transport(), got.orders())
	var tx usersTx
	cfg.Pipeline.Outgoing.Use("see", func(next pipeline.Func[*pipeline.Outgoing]) pipeline.Func[*pipeline.Outgoing] {
		return func(ctx context.Context, out *pipeline.Outgoing) error {
			if out.Tx != tx.tx {
				t.Errorf("Outgoing.Tx is %v", out.Tx)
			}
			return next(ctx, out)
		}
	})
	cfg.Pipeline.Dispatch.Use("twice", func(next pipeline.Func[*pipeline.Dispatch]) pipeline.Func[*pipeline.Dispatch] {
		return func(ctx context.Context, d *pipeline.Dispatch) error {
			if d.Incoming == nil {
				if d.Tx != tx.tx {
					t.Errorf("Dispatch.Tx is %v", d.Tx)
				}
				d.Operations = append(d.Operations, d.Operations...)
			}
			return next(ctx, d)
		}
	})
	e := start(t, cfg)
	tx = store.begin()
	e.send(placeOrder{"1"}, endpoint.In(tx.tx))
	must(t, tx.commit())
	if a, b := got.next(t), got.next(t); a != "order 1" || b != "order 1" {
		t.Errorf("handled %q and %q, want the order twice", a, b)
	}
}

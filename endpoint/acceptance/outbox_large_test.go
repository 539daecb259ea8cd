package acceptance_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
	"github.com/holdfast-go/holdfast/transport/postgres"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

// largeOutbox is a database with a table of orders.
type largeOutbox struct {
	outbox transport.Transport
	write  func(ctx context.Context, s *endpoint.Session, id string) error // in the handler's transaction
	count  func(query string) int
}

var largeOutboxes = map[string]func(t *testing.T) largeOutbox{
	"postgres": func(t *testing.T) largeOutbox {
		t.Helper()
		url := brokertest.Postgres(t)
		conn, err := pgx.Connect(t.Context(), url)
		must(t, err)
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		_, err = conn.Exec(t.Context(), "CREATE TABLE orders (id text)")
		must(t, err)
		return largeOutbox{
			outbox: &postgres.Transport{URL: url},
			write: func(ctx context.Context, s *endpoint.Session, id string) error {
				tx, err := postgres.Tx(ctx, s)
				if err == nil {
					_, err = tx.Exec(ctx, "INSERT INTO orders VALUES ($1)", id)
				}
				return err
			},
			count: func(query string) (n int) {
				must(t, conn.QueryRow(t.Context(), query).Scan(&n))
				return n
			},
		}
	},
	"sqlite": func(t *testing.T) largeOutbox {
		t.Helper()
		path := filepath.Join(t.TempDir(), "shop.db")
		db, err := sql.Open("sqlite", "file:"+path+"?_busy_timeout=20000")
		must(t, err)
		t.Cleanup(func() { _ = db.Close() })
		_, err = db.ExecContext(t.Context(), "CREATE TABLE orders (id text)")
		must(t, err)
		return largeOutbox{
			outbox: &sqlite.Transport{Path: path},
			write: func(ctx context.Context, s *endpoint.Session, id string) error {
				return sqlite.OnCommit(ctx, s, func(ctx context.Context, tx *sql.Tx) error {
					_, err := tx.ExecContext(ctx, "INSERT INTO orders VALUES (?)", id)
					return err
				})
			},
			count: func(query string) (n int) {
				query = strings.NewReplacer(`"sales.outbox"`, "holdfast_messages", `"sales.handled"`, "holdfast_handled").Replace(query)
				must(t, db.QueryRowContext(t.Context(), query).Scan(&n))
				return n
			},
		}
	},
}

// One handler sends more than 64 MiB: it all arrives if each message fits into a row. One that does
// not is refused before the commit, with all that the handler has written and sent, by an error
// that names the sizes.
func TestLargeSends(t *testing.T) {
	onBrokers(t, []string{"postgres"}, []string{"sqlite"}, func(t *testing.T, database string) {
		o := largeOutboxes[database](t)
		broker := &inmemory.Transport{}
		broker.CreateQueues("shipping")
		var sizes []int // of what the handler sends
		cfg := sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m placeOrder) error {
			if err := o.write(ctx, s, m.ID); err != nil {
				return err
			}
			for _, size := range sizes {
				if err := s.Send(ctx, shipOrder{strings.Repeat("x", size)}); err != nil {
					return err
				}
			}
			return nil
		}))
		cfg.Outbox = o.outbox
		cfg.Recoverability = recoverability.Config{Immediate: recoverability.None, Delayed: recoverability.None}
		e := start(t, cfg)
		await := func(queue string, messages int) []*transport.Message {
			t.Helper()
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for late := time.After(timeLimit); ; {
				if all := broker.Messages(queue); len(all) >= messages {
					return all
				}
				select {
				case <-tick.C:
				case <-late:
					t.Fatalf("%d messages in queue %q, want %d; %d failed; health %+v", len(broker.Messages(queue)), queue, messages,
						len(broker.Messages("error")), e.Health())
				}
			}
		}

		sizes = []int{60 << 20}
		for range 2 {
			sizes = append(sizes, 4<<20)
		}
		e.send(placeOrder{"large"})
		total := 0
		for _, m := range await("shipping", len(sizes)) {
			total += len(m.Body) - len(`{"ID":""}`)
		}
		if total != (60+2*4)<<20 {
			t.Errorf("%d bytes have arrived, want 68 MiB", total)
		}

		sent := len(sizes)
		sizes = []int{1, 64 << 20}
		e.send(placeOrder{"too large"})
		failure := ""
		for name, value := range await("error", 1)[0].Headers.All() {
			if name == "NServiceBus.ExceptionInfo.Message" {
				failure = value
			}
		}
		if !strings.Contains(failure, "is over the limit of 67108864") {
			t.Errorf("the message failed with %q", failure)
		}
		if err := e.Send(t.Context(), shipOrder{strings.Repeat("x", 64<<20)}, endpoint.ViaOutbox()); err == nil ||
			!strings.Contains(err.Error(), "is over the limit of 67108864") {
			t.Errorf("a send that is too large: %v", err)
		}
		e.end()
		orders, stored := o.count(`SELECT count(*) FROM orders`), o.count(`SELECT count(*) FROM "sales.outbox"`)
		// On a slow machine the answer of the commit is late. Then the endpoint asks whether the
		// database stores another row, and each question leaves an id.
		if keys := o.count(`SELECT count(*) FROM "sales.handled"`); orders != 1 || stored != 0 || keys < 1 ||
			len(broker.Messages("shipping")) != sent {
			t.Errorf("%d orders, %d stored rows, %d ids, %d sent", orders, stored, keys, len(broker.Messages("shipping")))
		}
	})
}

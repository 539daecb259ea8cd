package acceptance_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport/inmemory"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

type orderCharged struct{ ID string }

// What all functions of an event write and send is committed with the message, or nothing of it.
func TestRaisedEventsShareTheTransactionOfTheirMessage(t *testing.T) {
	for _, mode := range []string{"outbox", "atomic"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { raiseOnSQLite(t, mode) })
		})
	}
}

func raiseOnSQLite(t *testing.T, mode string) {
	path := filepath.Join(t.TempDir(), "shop.db")
	db, err := sql.Open("sqlite", "file:"+path+"?_busy_timeout=5000")
	must(t, err)
	defer db.Close()
	_, err = db.ExecContext(t.Context(), "create table written (name text, id text)")
	must(t, err)
	write := func(ctx context.Context, s *endpoint.Session, name, id string) error {
		return sqlite.OnCommit(ctx, s, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "insert into written values (?, ?)", name, id)
			return err
		})
	}

	var mu sync.Mutex
	var shipped []string
	cfg := sales(
		&sqlite.Transport{Path: path},
		endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m placeOrder) error {
			if err := write(ctx, s, "order", m.ID); err != nil {
				return err
			}
			_ = s.Raise(ctx, orderCharged(m)) // dropped: the message fails nevertheless
			return nil
		}),
		endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m shipOrder) error {
			mu.Lock()
			defer mu.Unlock()
			shipped = append(shipped, m.ID)
			return nil
		}),
	)
	cfg.Routes = []endpoint.Route{endpoint.RouteTo[shipOrder]("sales"), endpoint.RouteTo[placeOrder]("sales")}
	cfg.Raised = []endpoint.Raised{
		endpoint.OnRaised(func(ctx context.Context, s *endpoint.Session, e orderCharged) error {
			if err := write(ctx, s, "ledger", e.ID); err != nil {
				return err
			}
			return s.Send(ctx, shipOrder(e))
		}),
		endpoint.OnRaised(func(ctx context.Context, s *endpoint.Session, e *orderCharged) error {
			if e.ID == "refused" {
				return errNo
			}
			return write(ctx, s, "statistics", e.ID)
		}),
	}
	cfg.Recoverability = recoverability.Config{Immediate: 1, Delayed: recoverability.None}
	if mode == "atomic" {
		cfg.Transactions = endpoint.SendsAtomicWithReceive
	} else {
		cfg.Outbox, cfg.Transport = cfg.Transport, &inmemory.Transport{}
	}
	e := start(t, cfg)
	e.send(placeOrder{"refused"})
	e.send(placeOrder{"paid"})
	time.Sleep(time.Minute)
	e.end()

	rows, err := db.QueryContext(t.Context(), "select name || ' ' || id from written order by 1")
	must(t, err)
	defer rows.Close()
	var written []string
	for rows.Next() {
		var text string
		must(t, rows.Scan(&text))
		written = append(written, text)
	}
	must(t, rows.Err())
	if diff := cmp.Diff([]string{"ledger paid", "order paid", "statistics paid"}, written); diff != "" {
		t.Error(diff)
	}
	if !slices.Equal(shipped, []string{"paid"}) {
		t.Errorf("shipped %q", shipped)
	}
}

package acceptance_test

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport/inmemory"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

// While the file has no room for what the handler writes, and room for the rows of the outbox, no
// message fails, none is lost and none is handled twice. The endpoint stays ready.
func TestAFullFileOfOneHandlerUsesUpNoRetry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "shop.db")
		db, err := sql.Open("sqlite", "file:"+path+"?_busy_timeout=5000")
		must(t, err)
		defer db.Close()
		_, err = db.ExecContext(t.Context(), "create table orders (id text, receipt blob)")
		must(t, err)

		var full atomic.Bool
		broker := &inmemory.Transport{}
		broker.CreateQueues("shipping")
		cfg := sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o placeOrder) error {
			err := sqlite.OnCommit(ctx, s, func(ctx context.Context, tx *sql.Tx) error {
				pages := 1_000_000
				if full.Load() {
					pages = 1 // no more than there are
				}
				if _, err := tx.ExecContext(ctx, fmt.Sprintf("pragma max_page_count=%d", pages)); err != nil {
					return err
				}
				_, err := tx.ExecContext(ctx, "insert into orders values (?, zeroblob(100000))", o.ID)
				return err
			})
			if err != nil {
				return err
			}
			return s.Send(ctx, shipOrder(o))
		}))
		cfg.Outbox = &sqlite.Transport{Path: path}
		cfg.Recoverability = recoverability.Config{Immediate: recoverability.None, Delayed: recoverability.None}
		e := start(t, cfg)

		const messages = 20
		full.Store(true)
		for n := range messages {
			e.send(placeOrder{fmt.Sprint(n)})
		}
		time.Sleep(90 * time.Second)
		if health := e.Health(); !health.Ready {
			t.Errorf("the endpoint is not ready: %q", health.Reasons)
		}
		full.Store(false)
		time.Sleep(time.Minute)
		var rows int
		must(t, db.QueryRowContext(t.Context(), "select count(*) from orders").Scan(&rows))
		if sent := len(broker.Messages("shipping")); rows != messages || sent != messages || !e.Health().Ready {
			t.Errorf("%d rows and %d sent messages, want %d each; health %+v", rows, sent, messages, e.Health())
		}
		for _, m := range broker.Messages("error") {
			t.Errorf("a message failed: %v", m.Headers)
		}
		e.end()
	})
}

package acceptance_test

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport/inmemory"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

// While the file takes no writes, which the handler's statement finds out first, no message fails, none is lost and none is
// handled twice.
func TestAFileThatTakesNoWritesUsesUpNoRetry(t *testing.T) {
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
		health := e.Health()
		if reasons := strings.Join(health.Reasons, " "); health.Ready || !strings.Contains(reasons, "disk is full") {
			t.Errorf("ready %t, reasons %q", health.Ready, reasons)
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

package postgres

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
)

// A savepoint that outlives its handler, as in a goroutine, does nothing to the transaction of the
// next message, which has the same connection and savepoints of the same names.
func TestASavepointEndsWithItsTransaction(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"complete", "rollback"} {
		w := newBiz(t)
		c := w.openAs(Transport{MaxTx: 1})
		send(t, c, to("in", msg("1")), to("in", msg("2")))
		ds := receive(t, receiver(t, c, "in"), 2)
		tx, user := begun(t, ds[0])
		outer, err := user.Begin(t.Context())
		ok(t, err)
		inner, err := outer.Begin(t.Context())
		ok(t, err)
		if end == "complete" {
			ok(t, tx.Complete(t.Context(), nil))
		} else {
			ok(t, tx.Rollback(t.Context()))
			ok(t, ds[0].Complete(t.Context()))
		}
		tx, user = begun(t, ds[1])
		next, err := user.Begin(t.Context())
		ok(t, err)
		again, err := next.Begin(t.Context())
		ok(t, err)
		ok(t, w.write(again, 1))
		for i, stale := range []pgx.Tx{outer, inner} {
			if err := w.write(stale, 7+i); !errors.Is(err, pgx.ErrTxClosed) {
				t.Errorf("%s: a write: %v", end, err)
			}
			after(t, stale)
			if err := stale.Rollback(t.Context()); !errors.Is(err, pgx.ErrTxClosed) {
				t.Errorf("%s: a rollback: %v", end, err)
			}
			if err := stale.Commit(t.Context()); !errors.Is(err, pgx.ErrTxClosed) {
				t.Errorf("%s: a commit: %v", end, err)
			}
		}
		ok(t, tx.Complete(t.Context(), nil))
		w.wantRows(0, 0, 1)
	}
}

package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// A function of OnCommit that hangs fails its message. The writes that share its transaction are
// made, and the function can write no more.
func TestAHangingOnCommitFailsItsMessage(t *testing.T) {
	path := temp(t)
	synctest.Test(t, func(t *testing.T) {
		conn := dial(t, Transport{Path: path, Lease: time.Hour}, queue, "shipping")
		db := charges(t, conn, path, 3)
		r := receiver(t, conn, queue)
		gate, release, late := make(chan struct{}), make(chan struct{}), make(chan error)
		funcs := []func(context.Context, *sql.Tx) error{
			func(context.Context, *sql.Tx) error { <-gate; return nil }, // meanwhile the others come to share a transaction
			func(ctx context.Context, tx *sql.Tx) error {
				err := charge("hanging")(ctx, tx)
				<-release
				late <- charge("late")(context.WithoutCancel(ctx), tx)
				return err
			},
			func(ctx context.Context, tx *sql.Tx) error {
				close(release)
				if err := <-late; err == nil {
					t.Error("the function has written after its time")
				}
				return charge("other")(ctx, tx)
			},
		}
		var txs []transport.Tx
		for _, f := range funcs { // before the first one runs: a claim is a write too
			tx := begin(t, receive(t, r))
			onCommit(t, tx, f)
			txs = append(txs, tx)
		}
		done := make([]chan error, len(funcs))
		for i, tx := range txs {
			done[i] = make(chan error, 1)
			go func() { done[i] <- tx.Complete(context.WithoutCancel(t.Context()), nil) }()
			synctest.Wait()
		}
		began := time.Now()
		close(gate)
		for i, failed := range []bool{false, true, false} {
			if err := <-done[i]; errors.Is(err, errHangs) != failed || (err != nil) != failed || errors.Is(err, transport.ErrUnreachable) {
				t.Errorf("message %d: %v", i, err)
			}
		}
		if took := time.Since(began); took != commitTimeout {
			t.Errorf("the others waited for %v", took)
		}
		if n := count(t, db, `select count(*) from charges`); n != 1 {
			t.Errorf("%d rows were written, want that of the other message", n)
		}
	})
}

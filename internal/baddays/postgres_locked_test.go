package baddays_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
)

// postgresLocked locks the table of one destination.
func postgresLocked(transactions endpoint.TransactionMode) func(t *testing.T) outcome {
	return func(t *testing.T) outcome {
		r := startRelays(t, transactions, "sink", "other")
		stop := r.feed(5, "other")
		undisturbed := r.rate(time.Second)
		tx, err := r.db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
		if _, err := tx.Exec(t.Context(), `LOCK TABLE other IN ACCESS EXCLUSIVE MODE`); err != nil {
			t.Fatal(err)
		}
		var before int
		if err := tx.QueryRow(t.Context(), `SELECT count(*) FROM other`).Scan(&before); err != nil {
			t.Fatal(err)
		}
		locked := r.rate(time.Duration(size(2, 45)) * time.Second)
		if locked < 0.08*undisturbed {
			t.Errorf("%.0f messages/s for other queues while one table was locked, %.0f before", locked, undisturbed)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		sent := stop()
		normal := r.wait("the messages for the locked table are sent", 50*time.Second, func() bool { return r.rows("other") == sent["other"] })
		r.wait("all messages are handled", time.Minute, func() bool { return r.rows("work") == 0 })
		if n, failed := r.rows("sink"), r.rows("error"); n != sent["sink"] || failed != 0 {
			t.Errorf("%d of %d messages in sink, %d in the error queue", n, sent["sink"], failed)
		}
		if n := r.retried.Load(); n != 0 {
			t.Errorf("%d runs used up an attempt", n)
		}
		return outcome{
			message:    fmt.Sprintf("%d for the locked table wait, without an attempt used up; sent once each when the lock ends", sent["other"]-before),
			neighbours: fmt.Sprintf("%.2f of the undisturbed rate", locked/undisturbed), normal: normal,
		}
	}
}

package baddays_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
)

// postgresTrigger has a trigger on the table of one destination, which waits for a row that another
// transaction has locked. Of each 100 messages, bad go to the destination.
func postgresTrigger(transactions endpoint.TransactionMode, bad int) func(t *testing.T) outcome {
	return func(t *testing.T) outcome {
		r := startRelays(t, transactions, "sink", "other")
		r.exec(`CREATE TABLE stock (n int)`)
		r.exec(`INSERT INTO stock VALUES (1)`)
		r.exec(`CREATE FUNCTION take() RETURNS trigger LANGUAGE plpgsql AS
			'BEGIN PERFORM 1 FROM stock FOR UPDATE; RETURN NEW; END'`)
		r.exec(`CREATE TRIGGER take BEFORE INSERT ON other FOR EACH ROW EXECUTE FUNCTION take()`)
		stop := r.feed(bad, "other")
		undisturbed := r.rate(time.Duration(size(2, 10)) * time.Second)
		tx, err := r.db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
		if _, err := tx.Exec(t.Context(), `UPDATE stock SET n = 2`); err != nil {
			t.Fatal(err)
		}
		before := r.rows("other")
		named := r.wait("Health names the queue", time.Minute, func() bool {
			return slices.ContainsFunc(r.e.Health().Warnings, func(w string) bool { return strings.Contains(w, `"other"`) })
		})
		locked := r.rate(time.Duration(size(3, 30)) * time.Second)
		if locked < 0.08*undisturbed {
			t.Errorf("%.0f messages/s for other queues while a trigger waited, %.0f before", locked, undisturbed)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		sent := stop()
		normal := r.wait("the messages that waited are sent", time.Minute, func() bool { return r.rows("other") == sent["other"] })
		r.wait("all messages are handled", time.Minute, func() bool { return r.rows("work") == 0 })
		if n, failed := r.rows("sink"), r.rows("error"); n != sent["sink"] || failed != 0 {
			t.Errorf("%d of %d messages in sink, %d in the error queue", n, sent["sink"], failed)
		}
		if n := r.retried.Load(); n != 0 {
			t.Errorf("%d runs used up an attempt", n)
		}
		return outcome{
			message:    fmt.Sprintf("%d wait, without an attempt used up; Health names the queue after %v", sent["other"]-before, named),
			neighbours: fmt.Sprintf("%.2f of the undisturbed rate", locked/undisturbed), normal: normal,
		}
	}
}

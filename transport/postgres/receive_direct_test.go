package postgres

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/transport"
)

// Rows that are stored for a receiver of the Conn are leased to the receiver: no other process
// receives them.
func TestStoredRowsAreLeasedToAReceiverOfTheConn(t *testing.T) {
	t.Parallel()
	w := newOutbox(t)
	c := w.openAs(Transport{Lease: 20 * time.Second})
	r := receiver(t, c, "out")
	r.Window(1000)
	store := c.(transport.OutboxStore)
	const handlers, each = 16, 10
	var wg sync.WaitGroup
	for h := range handlers {
		wg.Go(func() {
			for i := range each {
				n := h*each + i
				e := entryOf("in.handled", n, fmt.Sprint(n, "a"), fmt.Sprint(n, "b"))
				if n%2 == 0 {
					ok(t, store.Store(t.Context(), e))
					continue
				}
				e.Ops = e.Ops[:1+n%3/2]
				_, err := storeTx(t, c, e, func(tx pgx.Tx) { ok(t, w.write(tx, n)) })
				ok(t, err)
			}
		})
	}
	wg.Wait()
	var rows, leased int
	ok(t, w.sql.QueryRow(t.Context(), `SELECT count(*), count(*) FILTER (WHERE delivery_count = 1 AND lease_owner IS NOT NULL
		AND visible_at BETWEEN now() + interval '2 seconds' AND now() + interval '20 seconds') FROM `+quote(w.schema, "out")).Scan(&rows, &leased))
	if leased != rows || rows == 0 {
		t.Fatalf("%d of %d rows are leased", leased, rows)
	}
	nothing(t, receiver(t, w.open(), "out"))
	seen := map[string]bool{}
	for len(seen) < rows {
		ds := receive(t, r, 1)
		for _, d := range ds {
			m := d.Message()
			if seen[m.ID] || string(m.Body) != "body of "+m.ID {
				t.Errorf("received %q with the body %q", m.ID, m.Body)
			}
			seen[m.ID] = true
			ok(t, d.Complete(t.Context()))
		}
	}
	if n := w.count("out"); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}

// A row whose key is not new is neither inserted nor received.
func TestARowOfAHandledMessageIsNotReceived(t *testing.T) {
	t.Parallel()
	w := newOutbox(t)
	c := w.open()
	r := receiver(t, c, "out")
	r.Window(1)
	store := c.(transport.OutboxStore)
	ok(t, store.Store(t.Context(), entryOf("in.handled", 1, "1")))
	for range 3 {
		isErr(t, store.Store(t.Context(), entryOf("in.handled", 1, "2")), transport.ErrAlreadyHandled)
		_, err := storeTx(t, c, entryOf("in.handled", 1, "3"), func(pgx.Tx) {})
		isErr(t, err, transport.ErrAlreadyHandled)
	}
	if id := receive(t, r, 1)[0].Message().ID; id != "1" {
		t.Errorf("received %q", id)
	}
	ok(t, store.Store(t.Context(), entryOf("in.handled", 2, "4")))
	var leased bool
	ok(t, w.sql.QueryRow(t.Context(), `SELECT bool_or(lease_id IS NOT NULL AND delivery_count = 1) FROM `+quote(w.schema, "out")+
		` WHERE headers LIKE '%"4"%'`).Scan(&leased))
	if !leased {
		t.Error("the failures have used up the room")
	}
}

package postgres

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest/nservicebus"
	"github.com/holdfast-go/holdfast/transport"
)

// theirs creates a queue as NServiceBus does, and returns its address.
func (w *world) theirs(queue string) string {
	w.t.Helper()
	address := nservicebus.Address(w.schema, queue)
	ok(w.t, nservicebus.CreateQueue(w.t.Context(), w.sql, address))
	return address
}

// theySend sends messages with ids as NServiceBus does.
func (w *world) theySend(address string, ids ...string) {
	w.t.Helper()
	for _, id := range ids {
		m := nservicebus.Message{Headers: map[string]string{header.MessageID: id}, Body: []byte("body of " + id)}
		ok(w.t, nservicebus.Send(w.t.Context(), w.sql, address, m))
	}
}

// theyReceive returns the ids of the messages of a queue, which NServiceBus receives.
func (w *world) theyReceive(address string) (ids []string) {
	w.t.Helper()
	for {
		found, err := nservicebus.Handle(w.t.Context(), w.sql, address, func(_ pgx.Tx, m *nservicebus.Message) error {
			ids = append(ids, m.Headers[header.MessageID])
			return nil
		})
		ok(w.t, err)
		if !found {
			return ids
		}
	}
}

func browse(t *testing.T, c transport.Conn, queue string) (transport.Cursor, []*transport.Message) {
	t.Helper()
	cur, err := c.(transport.Browser).Browse(t.Context(), queue)
	ok(t, err)
	ms, err := cur.Next(t.Context(), 100)
	ok(t, err)
	return cur, ms
}

func idsOf(ms []*transport.Message) (ids []string) {
	for _, m := range ms {
		ids = append(ids, m.ID)
	}
	return ids
}

func TestATableOfNServiceBusIsBrowsedAndTakenFrom(t *testing.T) {
	t.Parallel()
	for name, pooled := range map[string]bool{"prepared": false, "pooled": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "out")
			errs, back := w.theirs("error"), w.theirs("Net.Peer")
			w.theySend(errs, "1", "2", "3", "3")
			c := w.openAs(Transport{Pooled: pooled})
			cur, ms := browse(t, c, "error")
			if got := idsOf(ms); !slices.Equal(got, []string{"1", "2", "3", "3"}) {
				t.Fatalf("messages %q", got)
			}
			ok(t, cur.Take(t.Context(), ms[1], []transport.Operation{to(back, msg("2")), to("out", msg("ours"))}))
			isErr(t, cur.Take(t.Context(), ms[1], []transport.Operation{to("out", msg("again"))}), transport.ErrNotFound)
			ok(t, cur.Take(t.Context(), ms[2], nil))
			if err := cur.Take(t.Context(), ms[0], []transport.Operation{to("missing", msg("x"))}); err == nil {
				t.Error("a message for a missing queue was sent")
			}
			if n := w.count("out"); n != 1 {
				t.Errorf("%d messages in our queue, want 1", n)
			}
			if got := w.theyReceive(back); !slices.Equal(got, []string{"2"}) {
				t.Errorf("NServiceBus received %q", got)
			}
			if got := w.theyReceive(errs); !slices.Equal(got, []string{"1", "3"}) {
				t.Errorf("left are %q", got)
			}
		})
	}
}

// A message that NServiceBus receives is neither taken nor purged.
func TestMessageNServiceBusReceivesStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	errs := w.theirs("error")
	w.theySend(errs, "1", "2")
	c := w.open()
	cur, ms := browse(t, c, "error")
	tx, err := w.sql.Begin(t.Context())
	ok(t, err)
	_, err = nservicebus.Receive(t.Context(), tx, errs)
	ok(t, err)
	isErr(t, cur.Take(t.Context(), ms[0], nil), transport.ErrNotFound)
	n, err := c.(transport.Purger).Purge(t.Context(), "error")
	if n != 1 || err != nil {
		t.Errorf("%d messages purged, error %v, want 1", n, err)
	}
	ok(t, tx.Rollback(t.Context()))
	if got := w.theyReceive(errs); !slices.Equal(got, []string{"1"}) {
		t.Errorf("left are %q", got)
	}
}

// A row is taken by its seq and its id: the seq may be that of another row when the table was
// emptied meanwhile.
func TestARowWithTheSeqOfAnotherIsNotTaken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	errs := w.theirs("error")
	w.theySend(errs, "1")
	cur, ms := browse(t, w.open(), "error")
	w.exec(`TRUNCATE %serror RESTART IDENTITY`)
	w.theySend(errs, "2")
	isErr(t, cur.Take(t.Context(), ms[0], nil), transport.ErrNotFound)
	if n := w.count("error"); n != 1 {
		t.Errorf("%d messages are left, want 1", n)
	}
}

func TestATableThatIsNoQueueIsNotBrowsed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`CREATE TABLE %scustomers (id uuid PRIMARY KEY, name text)`)
	_, err := w.open().(transport.Browser).Browse(t.Context(), "customers")
	if err == nil || errors.Is(err, transport.ErrNoQueue) || !strings.Contains(err.Error(), `no queue: it has no column "expires"`) {
		t.Errorf("error %v", err)
	}
}

// An event with two subscribers has two copies of one message, each of which both systems move and
// audit.
func TestTwoCopiesOfAMessageAreInErrorAndAuditTables(t *testing.T) {
	t.Parallel()
	for _, tables := range []string{"theirs", "ours"} {
		t.Run(tables, func(t *testing.T) {
			w := newWorld(t, "in")
			c := w.open()
			queues := map[string]string{"error": nservicebus.Address(w.schema, "error"), "audit": nservicebus.Address(w.schema, "audit")}
			if tables == "theirs" {
				w.theirs("error")
				w.theirs("audit")
			}
			ok(t, c.(transport.Installer).Install(t.Context(), transport.Plan{Queues: []transport.Queue{
				{Name: "error", Shared: true}, {Name: "audit", Shared: true},
			}}))
			in := msg(anID)
			send(t, c, to("in", in), to("in", in))
			for _, d := range receive(t, receiver(t, c, "in"), 2) {
				ok(t, completeWith(t, d, to("error", in), to("audit", in)))
			}
			theirs := &nservicebus.Message{Headers: map[string]string{header.MessageID: anID}}
			for range 2 {
				failed, audited := nservicebus.FailedCopy(theirs, `"public"."Net"`, "Net", "failure"), nservicebus.AuditCopy(theirs, "Net")
				ok(t, nservicebus.Send(t.Context(), w.sql, queues["error"], failed))
				ok(t, nservicebus.Send(t.Context(), w.sql, queues["audit"], audited))
			}
			for queue, address := range queues {
				if _, ms := browse(t, c, queue); !slices.Equal(idsOf(ms), []string{anID, anID, anID, anID}) {
					t.Errorf("queue %q: messages %q", queue, idsOf(ms))
				}
				if got := w.theyReceive(address); !slices.Equal(got, []string{anID, anID, anID, anID}) {
					t.Errorf("queue %q: ServiceControl reads %q", queue, got)
				}
			}
		})
	}
}

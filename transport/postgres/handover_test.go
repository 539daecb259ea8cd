package postgres

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest/nservicebus"
	"github.com/holdfast-go/holdfast/transport"
)

func handOver(t *testing.T, c transport.Conn, queue string) (transport.HandedOver, error) {
	t.Helper()
	return c.(transport.HandOverer).HandOver(t.Context(), queue, func(transport.HandOverProgress) {})
}

// nsbReceives moves due messages of NServiceBus and returns the ids of those that its endpoint
// handles.
func (w *world) nsbReceives(queue string) (ids []string) {
	w.t.Helper()
	address := nservicebus.Address(w.schema, queue)
	_, err := nservicebus.MoveDue(w.t.Context(), w.sql, nservicebus.DelayedAddress(w.schema, queue), address, 1000)
	ok(w.t, err)
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

func TestAQueueIsHandedOverToNServiceBus(t *testing.T) {
	t.Parallel()
	for _, zone := range []string{"UTC", "Asia/Tokyo"} {
		t.Run(zone, func(t *testing.T) {
			const queue = `Go."Peer`
			w := newWorld(t, queue, queue+".quarantine", queue+"-7", "other")
			w.exec(foreignTable)
			w.exec(`SET TIME ZONE '` + zone + `'`)
			c := w.openEndpoint(queue, Transport{URL: inZone(t, zone), Pooled: zone == "UTC"})
			r := receiver(t, c, queue)
			own := func(id string, after time.Duration) transport.Operation {
				op := to(queue, msg(id))
				op.After = after
				return op
			}
			send(t, c, to(queue, msg("waiting")), own("soon", time.Minute), own("late", time.Hour), delayed("forwarded", time.Minute),
				to(queue+".quarantine", msg("q")), to("other", msg("o")))
			d := receive(t, r, 1)[0]
			_, err := handOver(t, c, queue)
			for _, want := range []string{"1 messages are leased", queue + "/one/", "stop all instances"} {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("with a lease: the error has no %q: %v", want, err)
				}
			}
			ok(t, d.Release(t.Context()))
			done, err := handOver(t, c, queue)
			ok(t, err)
			want := transport.HandedOver{Moved: 3, Remaining: []transport.QueueStats{{Name: queue + ".quarantine", Ready: 1}}}
			for i := range done.Remaining {
				done.Remaining[i].Oldest = 0
			}
			if diff := cmp.Diff(want, done); diff != "" {
				t.Error(diff)
			}
			got := w.nsbReceives(queue)
			if diff := cmp.Diff([]string{"waiting"}, got); diff != "" {
				t.Errorf("NServiceBus handled at first: %s", diff)
			}
			if n := w.count("foreign"); n != 0 {
				t.Errorf("%d messages were forwarded early", n)
			}
			// The two are due within a minute of now, which is then over.
			if n := w.exec(`UPDATE ` + quote(w.schema, queue+".Delayed") + ` SET due = due - interval '1 minute'
				WHERE due < (now() AT TIME ZONE 'UTC') + interval '1 minute'`); n != 2 {
				t.Errorf("%d messages are due within a minute, want 2", n)
			}
			began := time.Now()
			for len(got) < 2 && time.Since(began) < patience {
				w.exec(`SELECT pg_sleep(0.05)`)
				got = append(got, w.nsbReceives(queue)...)
			}
			if len(got) < 2 || got[1] != "soon" {
				t.Fatalf("received %q", got)
			}
			for w.count("foreign") == 0 && time.Since(began) < patience {
				w.exec(`SELECT pg_sleep(0.05)`)
				got = append(got, w.nsbReceives(queue)...)
			}
			if n := w.count(queue + ".Delayed"); n != 1 || len(got) != 2 || w.count("foreign") != 1 {
				t.Errorf("%d delayed, %d forwarded, handled %q", n, w.count("foreign"), got)
			}
			if _, err := r.Receive(t.Context(), 1); err == nil {
				t.Error("an instance received from a queue that was handed over")
			}
		})
	}
}

// A message to a queue that was handed over is sent as to a queue of NServiceBus.
func TestSendToAQueueHandedOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in", "sender")
	sender := w.openEndpoint("sender", Transport{})
	receiver(t, sender, "sender")
	late := to("in", msg("late"))
	late.After = time.Hour
	send(t, sender, to("in", msg("1")), late)
	_, err := handOver(t, w.openEndpoint("in", Transport{}), "in")
	ok(t, err)
	send(t, sender, to("in", msg("2")), late)
	if n := w.count("sender.forwards"); n != 1 {
		t.Errorf("%d delayed messages at the sender, want 1", n)
	}
	if diff := cmp.Diff([]string{"1", "2"}, w.nsbReceives("in")); diff != "" {
		t.Error(diff)
	}
	if again, err := handOver(t, w.openEndpoint("in", Transport{}), "in"); err != nil || !again.Already || again.Moved != 0 {
		t.Errorf("handed over a second time: %+v, %v", again, err)
	}
	w.exec(`DROP TABLE %s"in.Delayed"`)
	w.exec(`DROP TABLE %s"in"`)
	install(t, sender, "in") // a new table of the same name
	send(t, sender, to("in", msg("3")))
	if n := w.count("in"); n != 1 {
		t.Errorf("%d messages, want 1", n)
	}
}

// The next handover moves messages that the last handover kept.
func TestNextHandOverMovesKeptMessages(t *testing.T) {
	t.Parallel()
	w, c, _ := forwarding(t)
	send(t, c, delayed("0", time.Hour))
	tx, err := w.sql.Begin(t.Context())
	ok(t, err)
	_, err = c.(transport.TxDispatcher).DispatchIn(t.Context(), tx, []transport.Operation{delayed("1", time.Hour)})
	ok(t, err)
	other := w.openEndpoint("in", Transport{})
	done, err := handOver(t, other, "in")
	ok(t, err)
	ok(t, tx.Commit(t.Context()))
	again, err := handOver(t, other, "in")
	ok(t, err)
	if done.Moved != 1 || again.Moved != 1 || w.count("in.Delayed") != 2 || w.count("in.forwards") != 0 {
		t.Errorf("%d messages were moved, then %d", done.Moved, again.Moved)
	}
}

// A message that was handed over is not found by its receipt.
func TestReceiptOfAMessageHandedOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	c := w.openEndpoint("in", Transport{})
	late := to("in", msg("late"))
	late.After = time.Hour
	receipts := send(t, c, late)
	_, err := handOver(t, c, "in")
	ok(t, err)
	isErr(t, c.(transport.Canceler).Cancel(t.Context(), receipts[0].Cancel), transport.ErrNotFound)
}

func TestAQueueThatCannotBeHandedOverIsUnchanged(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("q", maxName-len(".Delayed")+1)
	w := newWorld(t, "in", "text", long)
	w.exec(`ALTER TABLE %s"text" ALTER id DROP DEFAULT, ALTER id TYPE text USING id::text`)
	w.exec(`CREATE TABLE %s"in.Delayed" (note text)`)
	w.exec(foreignTable)
	c := w.openEndpoint("in", Transport{})
	for queue, want := range map[string]string{
		"in": "headers text, body bytea", "text": "--adopt", long: "too long", "foreign": "", "missing": "no such queue",
	} {
		var before []string
		if queue != "missing" {
			before = w.columns(queue)
		}
		done, err := handOver(t, c, queue)
		if queue == "foreign" { // it needs no hand-over
			if err != nil || !done.Already {
				t.Errorf("queue %q: %+v, %v", queue, done, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("queue %q: %v, want %q", queue, err, want)
		}
		if queue != "missing" && !slices.Equal(before, w.columns(queue)) {
			t.Errorf("queue %q was changed", queue)
		}
	}
}

func TestRowsWithTheSameIDAreHandedOverToo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	w.exec(`INSERT INTO %s"in" (id, headers) SELECT '` + anID + `', '{"NServiceBus.MessageId":"' || n || '"}' FROM generate_series(1, 3) AS n`)
	w.exec(`INSERT INTO %s"in" (headers, visible_at) VALUES ('no headers', now() + interval '1 hour'), ('{}', 'infinity')`)
	done, err := handOver(t, w.openEndpoint("in", Transport{}), "in")
	ok(t, err)
	if diff := cmp.Diff([]string{"1", "2", "3"}, w.nsbReceives("in")); diff != "" || done.Moved != 2 {
		t.Errorf("%d moved, %s", done.Moved, diff)
	}
	var text string
	ok(t, w.sql.QueryRow(t.Context(), `SELECT string_agg(headers, ' ' ORDER BY due) FROM `+w.schema+`."in.Delayed"`).Scan(&text))
	if want := fmt.Sprintf(`no headers {"%s":"\"%s\".\"in\""}`, header.ForwardDestination, w.schema); text != want {
		t.Errorf("headers %s, want %s", text, want)
	}
}

func TestForwardsBelongToTheirQueue(t *testing.T) {
	t.Parallel()
	w, c, _ := forwarding(t)
	plan := transport.Plan{Queues: []transport.Queue{{Name: "in"}, {Name: "out"}}}
	verify := func() []transport.Finding {
		found, err := c.(transport.Verifier).Verify(t.Context(), plan)
		ok(t, err)
		return found
	}
	send(t, c, delayed("1", time.Hour))
	if found := verify(); len(found) != 0 {
		t.Errorf("findings %v", found)
	}
	w.exec(`ALTER TABLE %s"in.forwards" DROP COLUMN expires`)
	if found := verify(); len(found) != 1 || found[0].Name != "in.forwards" || found[0].State != transport.Differs {
		t.Errorf("findings %v", found)
	}
	ok(t, c.(transport.Remover).Remove(t.Context(), "in"))
	var left []string
	ok(t, w.sql.QueryRow(t.Context(), `SELECT coalesce(array_agg(relname::text), '{}') FROM pg_class WHERE relkind = 'r' AND relnamespace = $1::regnamespace AND relname LIKE 'in%'`, w.schema).Scan(&left))
	if len(left) != 0 {
		t.Errorf("tables remain: %q", left)
	}
}

// A handover waits longer for its index than any statement of an endpoint.
func TestHandOverWaitsForItsIndex(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	tx, err := w.sql.Begin(t.Context())
	ok(t, err)
	_, err = tx.Exec(t.Context(), `INSERT INTO `+w.schema+`."in" (headers) VALUES ('{}')`) // the index waits for its end
	ok(t, err)
	c := w.openEndpoint("in", Transport{URL: testURL() + "&statement_timeout=200"})
	done := make(chan error, 1)
	go func() {
		_, err := handOver(t, c, "in")
		done <- err
	}()
	_, err = tx.Exec(t.Context(), `SELECT pg_sleep(1)`)
	ok(t, err)
	ok(t, tx.Commit(t.Context()))
	ok(t, <-done)
}

package postgres

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest/nservicebus"
	"github.com/holdfast-go/holdfast/transport"
)

// connected returns a further session.
func (w *world) connected() *pgx.Conn {
	w.t.Helper()
	c, err := pgx.Connect(w.t.Context(), testURL())
	ok(w.t, err)
	w.t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// keepSending sends as NServiceBus does until stop, and returns the number of messages and the
// longest time of an insert.
func keepSending(t *testing.T, db *pgx.Conn, address string, stop <-chan struct{}) (n int, longest time.Duration) {
	t.Helper()
	for {
		select {
		case <-stop:
			return n, longest
		default:
		}
		began := time.Now()
		m := nservicebus.Message{Headers: map[string]string{header.MessageID: fmt.Sprint("sent ", n)}, Body: []byte("body")}
		if err := nservicebus.Send(t.Context(), db, address, m); err != nil {
			t.Error(err)
			return n, longest
		}
		longest = max(longest, time.Since(began))
		n++
	}
}

func TestSendersDoNotWaitWhileATableIsTakenOver(t *testing.T) {
	t.Parallel()
	const rows, held, bound = 100_000, 10 * time.Second, 5 * time.Second
	w := newWorld(t)
	peer := w.theirs("Net.Peer")
	w.exec(`INSERT INTO %s"Net.Peer" (id, headers, body) SELECT gen_random_uuid(), '{"NServiceBus.MessageId":"' || n || '"}', 'body' FROM generate_series(1, $1::int) AS n`, rows)
	holder, sender := w.connected(), w.connected()
	tx, err := holder.Begin(t.Context())
	ok(t, err)
	ok(t, nservicebus.Send(t.Context(), tx, peer, nservicebus.Message{}))

	stop := make(chan struct{})
	var (
		others  sync.WaitGroup
		sent    int
		longest time.Duration
	)
	others.Go(func() { sent, longest = keepSending(t, sender, peer, stop) })
	others.Go(func() {
		if _, err := tx.Exec(t.Context(), `SELECT pg_sleep($1)`, held.Seconds()); err != nil {
			t.Error(err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Error(err)
		}
	})
	began := time.Now()
	err = adopt(t.Context(), w.adopting(), own("Net.Peer"))
	took := time.Since(began)
	close(stop)
	others.Wait()
	ok(t, err)
	t.Logf("taken over in %v; %d inserts meanwhile, the longest %v", took, sent, longest)
	if longest > bound {
		t.Errorf("an insert took %v, want at most %v", longest, bound)
	}
	if took < held-time.Second {
		t.Errorf("taken over after %v, while a transaction that had sent was open", took)
	}
	if n := w.count("Net.Peer"); n != rows+sent+1 {
		t.Errorf("%d rows, want %d", n, rows+sent+1)
	}
	w.wantAdopted("Net.Peer")
}

func TestNServiceBusSendsWhileWeReceive(t *testing.T) {
	t.Parallel()
	for name, create := range map[string]func(*testing.T, *world){
		"a table of ours":               func(t *testing.T, w *world) { ok(t, adopt(t.Context(), w.open(), own("in"))) },
		"a table that was taken over":   func(t *testing.T, w *world) { w.theirs("in"); ok(t, adopt(t.Context(), w.adopting(), own("in"))) },
		"a table of an earlier version": func(_ *testing.T, w *world) { w.version2("in") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "out")
			create(t, w)
			if name == "a table of an earlier version" { // NServiceBus needs ids of type uuid
				ok(t, adopt(t.Context(), w.adopting(), own("in")))
			}
			const n = 200
			address, db := nservicebus.Address(w.schema, "in"), w.connected()
			var sender sync.WaitGroup
			sender.Go(func() {
				for i := range n {
					m := nservicebus.Message{Headers: map[string]string{header.MessageID: fmt.Sprint(i)}, TTL: time.Duration(i%2) * time.Hour}
					if err := nservicebus.Send(t.Context(), db, address, m); err != nil {
						t.Error(err)
						return
					}
				}
			})
			defer sender.Wait()
			r := receiver(t, w.open(), "in")
			seen := map[string]int{}
			for len(seen) < n {
				d := receive(t, r, 1)[0]
				seen[d.Message().ID]++
				ok(t, completeWith(t, d, to("out", d.Message())))
			}
			if left, done := w.count("in"), w.count("out"); left != 0 || done != n {
				t.Errorf("%d rows are left, %d were sent on, want 0 and %d", left, done, n)
			}
		})
	}
}

func TestTheEndOfSeqIsWarnedOf(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "ours")
	w.theirs("Net.Peer")
	w.theirs("error")
	c := w.adopting()
	queues := []transport.Queue{own("Net.Peer"), shared("error"), own("ours")}
	ok(t, adopt(t.Context(), c, queues...))
	near := func() (found []string) {
		for _, f := range verified(t, c, queues...) {
			if strings.Contains(f, "seq has reached") {
				found = append(found, f)
			}
		}
		return found
	}
	if found := near(); len(found) > 0 {
		t.Errorf("findings %q of new tables", found)
	}
	for _, q := range []string{`"Net.Peer_seq_seq"`, "error_seq_seq", "ours_seq_seq"} {
		w.exec(`SELECT setval('%s`+q+`', $1)`, 1<<30+1)
	}
	found := near()
	if len(found) != 2 || !strings.Contains(found[0], `note queue "Net.Peer": seq has reached 1073741825 of 2147483647`) ||
		!strings.Contains(found[1], `queue "error"`) {
		t.Errorf("findings %q", found)
	}
	s := w.store()
	warnings, err := s.Warnings(t.Context(), []string{"Net.Peer", "ours"})
	ok(t, err)
	if len(warnings) != 1 || !strings.Contains(warnings[0], `"Net.Peer": seq has reached`) {
		t.Errorf("warnings %q", warnings)
	}
	r := receiver(t, c, "Net.Peer")
	send(t, c, to("Net.Peer", msg("1"))) // and its statement is prepared
	w.exec(`ALTER SEQUENCE %s"Net.Peer_seq_seq" AS bigint`)
	w.exec(`ALTER TABLE %s"Net.Peer" ALTER COLUMN seq TYPE bigint`)
	w.exec(`SELECT setval('%s"Net.Peer_seq_seq"', $1)`, 1<<40)
	send(t, c, to("Net.Peer", msg("2")))
	for _, d := range receive(t, r, 2) {
		ok(t, completeWith(t, d, to("ours", msg("done"))))
	}
	if found := near(); len(found) != 1 {
		t.Errorf("findings %q after it was widened", found)
	}
}

func TestASequenceThatMayNotBeReadIsNotWarnedOf(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.theirs("Net.Peer")
	role := w.restricted()
	w.exec(`GRANT SELECT ON ALL TABLES IN SCHEMA ` + w.schema + ` TO ` + role)
	p := Transport{URL: testURL() + "&options=-c%20role%3D" + role, Schema: w.schema}
	s, err := p.store(t.Context(), transport.Env{})
	ok(t, err)
	defer s.Close()
	warnings, err := s.Warnings(t.Context(), []string{"Net.Peer"})
	if err != nil || len(warnings) > 0 {
		t.Errorf("warnings %q, error %v", warnings, err)
	}
}

package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest/nservicebus"
	"github.com/holdfast-go/holdfast/transport"
)

// adopting opens a transport whose installer takes tables over.
func (w *world) adopting() transport.Conn { return w.openAs(Transport{Adopt: true}) }

func adopt(ctx context.Context, c transport.Conn, queues ...transport.Queue) error {
	return c.(transport.Installer).Install(ctx, transport.Plan{Queues: queues})
}

func own(queue string) transport.Queue    { return transport.Queue{Name: queue} }
func shared(queue string) transport.Queue { return transport.Queue{Name: queue, Shared: true} }

// verified returns the states and details of findings about queues.
func verified(t *testing.T, c transport.Conn, queues ...transport.Queue) (found []string) {
	t.Helper()
	all, err := c.(transport.Verifier).Verify(t.Context(), transport.Plan{Queues: queues})
	ok(t, err)
	for _, f := range all {
		found = append(found, f.String())
	}
	return found
}

const takenOver = "it was taken over from NServiceBus, which ignores leases and delays: its endpoint must not receive from it again"

// script executes the text of a transport's script by psql.
func (w *world) script(p Transport, plan transport.Plan) (string, error) {
	w.t.Helper()
	p.Schema = w.schema
	text, err := p.Script(plan)
	ok(w.t, err)
	cmd := exec.CommandContext(w.t.Context(), "psql", "--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", testURL())
	cmd.Stdin = strings.NewReader(text)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestATableOfNServiceBusIsTakenOver(t *testing.T) {
	t.Parallel()
	for name, takeOver := range map[string]func(*testing.T, *world){
		"by the installer": func(t *testing.T, w *world) {
			ok(t, adopt(t.Context(), w.adopting(), own("Net.Peer"), shared("error")))
		},
		"by the script": func(t *testing.T, w *world) {
			out, err := w.script(Transport{Adopt: true}, transport.Plan{Queues: []transport.Queue{own("Net.Peer"), shared("error")}})
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		},
	} {
		for _, body := range []string{"", "with BodyString"} {
			t.Run(name+" "+body, func(t *testing.T) {
				w := newWorld(t, "out")
				peer, errs := w.theirs("Net.Peer"), w.theirs("error")
				if body != "" {
					ok(t, nservicebus.AddBodyString(t.Context(), w.sql, peer))
				}
				before := w.columns("error")
				w.theySend(peer, "1", "2", "3")
				sender := w.open()
				send(t, sender, to("Net.Peer", msg("4"))) // and remembers that the table is foreign
				takeOver(t, w)
				first := w.columns("Net.Peer")
				takeOver(t, w)
				if diff := cmp.Diff(first, w.columns("Net.Peer")); diff != "" {
					t.Errorf("repeated it changes the table:\n%s", diff)
				}
				if diff := cmp.Diff(before, w.columns("error")); diff != "" {
					t.Errorf("the shared table was changed:\n%s", diff)
				}
				w.wantIDType("Net.Peer", "uuid", tableVersion)

				w.theySend(peer, "5")
				send(t, sender, to("Net.Peer", msg("6")))
				send(t, sender, to("error", msg("failed")))
				c := w.open()
				late := to("Net.Peer", msg("late"))
				late.After = time.Hour
				send(t, c, to("Net.Peer", msg("7")), late)
				ds := receive(t, receiver(t, c, "Net.Peer"), 7)
				var ids []string
				for _, d := range ds {
					ids = append(ids, d.Message().ID)
				}
				slices.Sort(ids)
				if !slices.Equal(ids, []string{"1", "2", "3", "4", "5", "6", "7"}) {
					t.Errorf("received %q", ids)
				}
				ok(t, completeWith(t, ds[0], to("out", msg("done"))))
				ok(t, ds[1].Retry(t.Context()))
				ok(t, ds[2].Release(t.Context()))
				for _, d := range ds[3:] {
					ok(t, d.Complete(t.Context()))
				}
				again := receive(t, receiver(t, c, "Net.Peer"), 2)
				if n := again[0].Attempt().N + again[1].Attempt().N; n != 3 {
					t.Errorf("%d attempts of a message that was retried and one that was released, want 3", n)
				}
				want := []string{fmt.Sprintf("note queue %q: %s", "Net.Peer", takenOver)}
				if diff := cmp.Diff(want, verified(t, c, own("Net.Peer"), shared("error"))); diff != "" {
					t.Errorf("findings (-want +got):\n%s", diff)
				}
				if got := w.theyReceive(errs); !slices.Equal(got, []string{"failed"}) {
					t.Errorf("in the shared table: %q", got)
				}
			})
		}
	}
}

// Tables that are not exactly those of NServiceBus, with the reason for which they are refused.
var notTheirs = map[string]struct{ table, reason string }{
	"a business table": {`CREATE TABLE %sq (id uuid PRIMARY KEY, name text)`, "it has no column body"},
	"a business table with all their columns": {
		`CREATE TABLE %sq (id uuid PRIMARY KEY, expires timestamp, headers text NOT NULL, body bytea, seq serial UNIQUE, customer text)`,
		"it has the column customer",
	},
	"another type of id":       {`CREATE TABLE %sq (id text PRIMARY KEY, expires timestamp, headers text NOT NULL, body bytea, seq serial UNIQUE)`, "its column id is of type text, not uuid"},
	"another type of expires":  {`CREATE TABLE %sq (id uuid PRIMARY KEY, expires timestamptz, headers text NOT NULL, body bytea, seq serial UNIQUE)`, "its column expires is of type timestamp with time zone"},
	"another type of headers":  {`CREATE TABLE %sq (id uuid PRIMARY KEY, expires timestamp, headers jsonb NOT NULL, body bytea, seq serial UNIQUE)`, "its column headers is of type jsonb"},
	"headers that may be null": {`CREATE TABLE %sq (id uuid PRIMARY KEY, expires timestamp, headers text, body bytea, seq serial UNIQUE)`, "its column headers may be null"},
	"a seq without a sequence": {`CREATE TABLE %sq (id uuid PRIMARY KEY, expires timestamp, headers text NOT NULL, body bytea, seq integer NOT NULL UNIQUE)`, "its column seq has no sequence"},
	"a seq that is not unique": {`CREATE TABLE %sq (id uuid PRIMARY KEY, expires timestamp, headers text NOT NULL, body bytea, seq serial)`, "its column seq is not unique"},
	"a BodyString that is written": {
		`CREATE TABLE %sq (id uuid PRIMARY KEY, expires timestamp, headers text NOT NULL, body bytea, seq serial UNIQUE, bodystring text)`,
		"it has the column bodystring",
	},
	"a trigger": {
		foreignQ + `; CREATE FUNCTION %sf() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; CREATE TRIGGER audits BEFORE INSERT ON %sq FOR EACH ROW EXECUTE FUNCTION %sf()`,
		"it has the trigger audits",
	},
	"a rule":             {foreignQ + `; CREATE RULE copies AS ON DELETE TO %sq DO ALSO NOTHING`, "it has the rule copies"},
	"row security":       {foreignQ + `; ALTER TABLE %sq ENABLE ROW LEVEL SECURITY`, "it has row security"},
	"a policy":           {foreignQ + `; CREATE POLICY p ON %sq USING (true)`, "it has row security"},
	"a check":            {foreignQ + `; ALTER TABLE %sq ADD CONSTRAINT short CHECK (octet_length(body) < 10)`, "it has the constraint short"},
	"a reference to it":  {foreignQ + `; CREATE TABLE %sother (q uuid REFERENCES %sq)`, "other refers to it"},
	"another unique key": {foreignQ + `; CREATE UNIQUE INDEX once ON %sq (headers)`, "once"},
	"an inheritance":     {foreignQ + `; CREATE TABLE %schild () INHERITS (%sq)`, "it is part of an inheritance"},
	"partitions": {
		`CREATE TABLE %sq (id uuid NOT NULL, expires timestamp, headers text NOT NULL, body bytea, seq serial) PARTITION BY HASH (id)`,
		"it is partitioned",
	},
	"a partition": {
		`CREATE TABLE %sall (id uuid PRIMARY KEY, expires timestamp, headers text NOT NULL, body bytea, seq serial) PARTITION BY HASH (id);
		CREATE TABLE %sq PARTITION OF %sall FOR VALUES WITH (MODULUS 1, REMAINDER 0)`,
		"it is a partition",
	},
	"a view":            {strings.ReplaceAll(foreignQ, "%sq", "%sbase") + `; CREATE VIEW %sq AS SELECT * FROM %sbase`, "it is a view"},
	"an unlogged table": {strings.Replace(foreignQ, "TABLE", "UNLOGGED TABLE", 1), "it is unlogged"},
}

const foreignQ = `CREATE TABLE %sq (id uuid PRIMARY KEY, expires timestamp, headers text NOT NULL, body bytea, seq serial UNIQUE)`

// A table that differs from a table of NServiceBus is not taken over.
func TestAdoptOnlyTablesOfNServiceBus(t *testing.T) {
	t.Parallel()
	for name, tt := range notTheirs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.exec(tt.table)
			before := w.columns("q")
			c := w.adopting()
			err := adopt(t.Context(), c, own("new"), own("q"))
			if err == nil || !strings.Contains(err.Error(), tt.reason) || !strings.Contains(err.Error(), "exactly one of NServiceBus") {
				t.Errorf("error %v, want one with %q", err, tt.reason)
			}
			if diff := cmp.Diff(before, w.columns("q")); diff != "" {
				t.Errorf("it was changed:\n%s", diff)
			}
			var created bool
			ok(t, w.sql.QueryRow(t.Context(), `SELECT to_regclass($1) IS NOT NULL`, quote(w.schema, "new")).Scan(&created))
			if created {
				t.Error("another queue was created before the refusal")
			}
		})
	}
}

func TestATableOfAnotherOwnerIsNotTakenOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	role := w.restricted()
	w.exec(foreignQ)
	w.exec(`GRANT ALL ON %sq TO ` + role)
	c := w.openAs(Transport{Adopt: true, URL: testURL() + "&options=-c%20role%3D" + role})
	err := adopt(t.Context(), c, own("q"))
	if err == nil || !strings.Contains(err.Error(), "it belongs to") {
		t.Errorf("error %v", err)
	}
}

// The table is unchanged if the user may not create indexes.
func TestAdoptWithoutRightToIndexes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	role := w.restricted()
	w.theirs("Net.Peer")
	w.exec(`ALTER TABLE %s"Net.Peer" OWNER TO ` + role)
	before := w.columns("Net.Peer")
	c := w.openAs(Transport{Adopt: true, URL: testURL() + "&options=-c%20role%3D" + role})
	err := adopt(t.Context(), c, own("Net.Peer"))
	if err == nil || !strings.Contains(err.Error(), "may not create indexes in the schema") {
		t.Errorf("error %v", err)
	}
	if diff := cmp.Diff(before, w.columns("Net.Peer")); diff != "" {
		t.Errorf("the table was changed:\n%s", diff)
	}
}

func TestATableIsNotTakenOverWithoutTheSetting(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.theirs("Net.Peer")
	before := w.columns("Net.Peer")
	c := w.open()
	install(t, c, "Net.Peer")
	_, err := c.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: "Net.Peer"})
	if err == nil || !strings.Contains(err.Error(), "holdfast endpoint create --adopt") || !strings.Contains(err.Error(), "Adopt set in the Transport") {
		t.Errorf("error %v, want one that says how to take it over", err)
	}
	if diff := cmp.Diff(before, w.columns("Net.Peer")); diff != "" {
		t.Errorf("it was changed:\n%s", diff)
	}
}

func TestAProxyNeedsAListenURLToTakeTablesOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	peer := w.theirs("Net.Peer")
	w.theySend(peer, "1")
	if err := adopt(t.Context(), w.openAs(Transport{Adopt: true, Pooled: true}), own("Net.Peer")); !errors.Is(err, errNoSession) {
		t.Errorf("error %v", err)
	}
	c := w.openAs(Transport{Adopt: true, Pooled: true, ListenURL: testURL()})
	ok(t, adopt(t.Context(), c, own("Net.Peer")))
	receive(t, receiver(t, c, "Net.Peer"), 1)
}

// A kill after any piece leaves a table that is not received from, and that a repetition completes.
func TestAnAdoptionThatWasKilledIsCompletedByTheNext(t *testing.T) {
	t.Parallel()
	plan := transport.Plan{Queues: []transport.Queue{own("Net.Peer")}}
	s := newStore(settings{adopts: true})
	s.Schema = "x"
	pieces := len(s.ddl.adoption(plan))
	for n := range pieces {
		t.Run(fmt.Sprint(n, " pieces"), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "out")
			peer := w.theirs("Net.Peer")
			w.theySend(peer, "1", "2")
			killed := w.store()
			session, err := killed.listener.connect(t.Context(), nil)
			ok(t, err)
			a := &adopter{installer: killed.installer, session: session}
			ok(t, a.begin(t.Context()))
			ok(t, pgx.BeginFunc(t.Context(), session, func(tx pgx.Tx) error { return killed.installIn(t.Context(), tx, plan) }))
			ok(t, a.all(t.Context(), killed.ddl.adoption(plan)[:n]))
			closeSoon(session)

			w.theySend(peer, "3")
			c := w.adopting()
			if n < pieces {
				if _, err := c.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: "Net.Peer"}); err == nil {
					t.Error("it is received from")
				}
			}
			if n > 0 { // which has added the columns
				err := adopt(t.Context(), w.open(), own("Net.Peer"))
				if err == nil || !strings.Contains(err.Error(), "taken over from NServiceBus in part") {
					t.Errorf("installing without the setting: %v", err)
				}
			}
			ok(t, adopt(t.Context(), c, own("Net.Peer")))
			receive(t, receiver(t, c, "Net.Peer"), 3)
			w.wantAdopted("Net.Peer")
		})
	}
}

// wantAdopted compares a table with another that was taken over without an interruption.
func (w *world) wantAdopted(queue string) {
	w.t.Helper()
	w.theirs("whole")
	ok(w.t, adopt(w.t.Context(), w.adopting(), own("whole")))
	names := strings.NewReplacer("whole", "_", queue, "_", `"`, "")
	plain := func(all []string) (out []string) {
		for _, c := range all {
			out = append(out, names.Replace(c))
		}
		return out
	}
	if diff := cmp.Diff(plain(w.columns("whole")), plain(w.columns(queue))); diff != "" {
		w.t.Errorf("not like a table that was taken over at once (-want +got):\n%s", diff)
	}
	var invalid int
	ok(w.t, w.sql.QueryRow(w.t.Context(), `SELECT count(*) FROM pg_index WHERE NOT indisvalid AND indrelid = to_regclass($1)`, quote(w.schema, queue)).Scan(&invalid))
	if invalid > 0 {
		w.t.Errorf("%d invalid indexes", invalid)
	}
}

// An index whose creation is cancelled stays in the catalog, invalid.
func TestAnIndexThatWasInterruptedIsCreatedAnew(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	peer := w.theirs("Net.Peer")
	ok(t, adopt(t.Context(), w.adopting(), own("Net.Peer")))
	w.exec(`DROP INDEX %s"Net.Peer_visible_at_seq_idx"`)
	w.exec(`UPDATE %sholdfast_tables SET version = 0`)
	tx, err := w.sql.Begin(t.Context())
	ok(t, err)
	ok(t, nservicebus.Send(t.Context(), tx, peer, nservicebus.Message{})) // the index waits for its end
	ctx, cancel := context.WithCancel(t.Context())
	var log lines
	p := Transport{URL: testURL(), Schema: w.schema, Adopt: true}
	c, err := p.Open(t.Context(), transport.Env{Endpoint: "adopter", Logger: slog.New(slog.NewTextHandler(&log, nil))})
	ok(t, err)
	defer c.Close()
	failed := make(chan error, 1)
	go func() { failed <- adopt(ctx, c, own("Net.Peer")) }()
	log.wait(t, "waiting_for=\"process ")
	cancel()
	if err := <-failed; err == nil {
		t.Error("no error")
	}
	ok(t, tx.Commit(t.Context()))
	ok(t, adopt(t.Context(), c, own("Net.Peer")))
	receive(t, receiver(t, c, "Net.Peer"), 1)
	w.wantAdopted("Net.Peer")
}

// lines is a log that can be waited for.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
	more chan struct{}
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(p)
	if l.more != nil {
		close(l.more)
		l.more = nil
	}
	return len(p), nil
}

// wait waits until the log has text.
func (l *lines) wait(t *testing.T, text string) {
	t.Helper()
	deadline := time.After(patience)
	for {
		l.mu.Lock()
		found, more := strings.Contains(l.text.String(), text), l.more
		if more == nil {
			more = make(chan struct{})
			l.more = more
		}
		l.mu.Unlock()
		if found {
			return
		}
		select {
		case <-more:
		case <-deadline:
			t.Fatalf("the log never has %q:\n%s", text, l.text.String())
		}
	}
}

// Installers that wait for an adoption are in no transaction. An installer that waits for another
// one has no open transaction meanwhile, which would keep indexes from being created.
func TestInstallersWaitOutsideTransactions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	w.theySend(w.theirs("Net.Peer"), "1")
	s := w.store()
	session, err := s.listener.connect(t.Context(), nil)
	ok(t, err)
	defer closeSoon(session)
	a := &adopter{installer: s.installer, session: session}
	ok(t, a.begin(t.Context()))
	var others sync.WaitGroup
	errs := make([]error, 3)
	for i := range errs {
		c := w.open()
		if i == 0 {
			c = w.adopting()
		}
		others.Go(func() { errs[i] = adopt(t.Context(), c, own("in"), own("new")) })
	}
	if out, err := w.script(Transport{}, plan("in")); err == nil || !strings.Contains(out, "another installer is at work") {
		t.Errorf("the script: %v, %s", err, out)
	}
	ok(t, pgx.BeginFunc(t.Context(), session, func(tx pgx.Tx) error { return s.installIn(t.Context(), tx, plan("Net.Peer")) }))
	ok(t, a.all(t.Context(), s.ddl.adoption(plan("Net.Peer"))))
	closeSoon(session)
	others.Wait()
	ok(t, errors.Join(errs...))
	receive(t, receiver(t, w.open(), "Net.Peer"), 1)
}

func TestATableWithTextIDsIsRewrittenOnDemand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.version2("in", "error")
	c := w.open()
	queues := []transport.Queue{own("in"), shared("error")}
	ok(t, adopt(t.Context(), c, queues...))
	want := []string{`differs queue "error": its ids are text, which ServiceControl cannot read: "holdfast endpoint create --adopt" rewrites the table`}
	if diff := cmp.Diff(want, verified(t, c, queues...)); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
	for _, queue := range []string{"in", "error"} {
		for _, id := range []string{anID, anID, "no uuid", strings.ToUpper(anID)} {
			w.exec(`INSERT INTO %s`+quote(queue)+` (id, headers, body) VALUES ($1, $2, '')`, id, fmt.Sprintf(`{%q:%q}`, header.MessageID, id))
		}
	}
	ok(t, adopt(t.Context(), w.adopting(), queues...))
	if found := verified(t, c, queues...); len(found) > 0 {
		t.Errorf("findings %q", found)
	}
	distinct := map[string]int{}
	for _, q := range queues {
		w.wantIDType(q.Name, "uuid", tableVersion)
		var n int
		ok(t, w.sql.QueryRow(t.Context(), `SELECT count(DISTINCT id) FROM `+quote(w.schema, q.Name)).Scan(&n))
		distinct[q.Name] = n
		var ids []string
		for _, d := range receive(t, receiver(t, c, q.Name), 4) {
			ids = append(ids, d.Message().ID)
		}
		if !slices.Equal(ids, []string{anID, anID, "no uuid", strings.ToUpper(anID)}) {
			t.Errorf("queue %q: messages %q", q.Name, ids)
		}
	}
	if want := map[string]int{"in": 2, "error": 4}; !cmp.Equal(want, distinct) {
		t.Errorf("ids %v, want %v", distinct, want)
	}
}

func TestASharedQueueWithoutAUniqueIndexIsReported(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "error")
	c := w.open()
	if found := verified(t, c, shared("error")); len(found) != 1 || !strings.Contains(found[0], "no unique index on id") {
		t.Errorf("findings %q", found)
	}
	ok(t, adopt(t.Context(), w.adopting(), shared("error")))
	if found := verified(t, c, shared("error")); len(found) > 0 {
		t.Errorf("findings %q", found)
	}
}

func TestARefusalIsReportedBeforeATableIsTakenOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(notTheirs["a trigger"].table)
	found := verified(t, w.open(), own("q"))
	if len(found) != 2 || !strings.Contains(found[0], "--adopt") || !strings.Contains(found[1], "it has the trigger audits") {
		t.Errorf("findings %q", found)
	}
}

package postgres

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

// earlierStatement returns a statement of the program before tables had ids of type uuid, for the
// queues in and out.
func (w *world) earlierStatement(name string) string {
	w.t.Helper()
	all, err := os.ReadFile("testdata/version2.sql")
	ok(w.t, err)
	_, text, found := strings.Cut("\n"+string(all), "\n-- "+name+"\n")
	if !found {
		w.t.Fatalf("no statement %q", name)
	}
	text, _, _ = strings.Cut(text, ";\n\n")
	text = strings.ReplaceAll(text, `"app"`, w.schema)
	return strings.ReplaceAll(text, "holdfast install app", "holdfast install "+w.schema)
}

// version2 creates queues as the installer of that program did.
func (w *world) version2(queues ...string) {
	w.t.Helper()
	for _, q := range queues {
		text := strings.ReplaceAll(w.earlierStatement("install"), `."in"`, "."+quote(q))
		text = strings.NewReplacer("'in'", literal(q), `"in_`, `"`+q+"_").Replace(text)
		w.exec("BEGIN;" + text + ";COMMIT")
	}
}

// idType returns the type of a queue's column id, and the version of its table.
func (w *world) idType(queue string) (kind string, version int) {
	w.t.Helper()
	ok(w.t, w.sql.QueryRow(w.t.Context(), `SELECT (SELECT atttypid::regtype::text FROM pg_attribute WHERE attrelid = to_regclass($1) AND attname = 'id'),
	(SELECT version FROM `+w.schema+`.holdfast_tables WHERE name = $2)`, quote(w.schema, queue), queue).Scan(&kind, &version))
	return kind, version
}

func (w *world) wantIDType(queue, wantKind string, wantVersion int) {
	w.t.Helper()
	if kind, version := w.idType(queue); kind != wantKind || version != wantVersion {
		w.t.Errorf("queue %q has ids of type %s and version %d, want %s and %d", queue, kind, version, wantKind, wantVersion)
	}
}

// earlierSend sends by the statement of the program before.
func (w *world) earlierSend(ids ...string) error {
	var headers []string
	var bodies [][]byte
	for _, id := range ids {
		headers, bodies = append(headers, fmt.Sprintf(`{%q:%q}`, header.MessageID, id)), append(bodies, []byte("body of "+id))
	}
	_, err := w.sql.Exec(w.t.Context(), w.earlierStatement("send"), ids, headers, bodies)
	return err
}

// earlierClaim returns the ids of up to n messages that the program before claims, and completes
// them.
func (w *world) earlierClaim(n int) (ids []string) {
	w.t.Helper()
	rows, err := w.sql.Query(w.t.Context(), w.earlierStatement("claim"), n, time.Minute.Microseconds(), 7, "earlier", everything.visibleAt, everything.seq, int64(1<<40))
	ok(w.t, err)
	var (
		id, text string
		seq      int64
		seqs     []int64
		leases   []int64
	)
	_, err = pgx.ForEachRow(rows, []any{&seq, &id, &text, new([]byte), new(int), new(bool), new(int64)}, func() error {
		if seq == 0 {
			return nil
		}
		h, err := header.ParseJSON(text)
		ids, seqs, leases = append(ids, h.Get(header.MessageID)), append(seqs, seq), append(leases, 7)
		return err
	})
	ok(w.t, err)
	_, err = w.sql.Exec(w.t.Context(), w.earlierStatement("complete"), seqs, leases)
	ok(w.t, err)
	return ids
}

func TestATableWithTextIDsIsUsedByBothVersions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.version2("in", "out")
	c := w.open()
	install(t, c, "in", "out")
	w.wantIDType("in", "text", textVersion)
	ok(t, w.earlierSend("one", anID))
	send(t, c, to("in", msg("two")), to("in", msg(anID)))
	delayed := to("in", msg("later"))
	delayed.After = time.Hour
	send(t, c, delayed)

	ids := map[string]int{}
	for _, id := range w.earlierClaim(2) {
		ids[id]++
	}
	for _, d := range receive(t, receiver(t, c, "out"), 2) {
		ids[d.Message().ID]++
		ok(t, completeWith(t, d, to("in", msg("done "+d.Message().ID))))
	}
	if ids["one"] != 1 || ids["two"] != 1 || ids[anID] != 2 {
		t.Errorf("received %v, want each once, and one message's copies both", ids)
	}
	if n := w.count("in"); n != 3 {
		t.Errorf("%d rows, want 2 sent with completions and a delayed one", n)
	}
	w.exec("BEGIN;" + w.earlierStatement("install") + ";COMMIT") // its installer finds what it knows
}

// The error says what keeps the earlier version from a new table.
func TestEarlierVersionIsToldWhy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in", "out")
	w.wantIDType("out", "uuid", tableVersion)
	err := w.earlierSend(anID)
	refused, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || !strings.Contains(refused.Message, `column "id" is of type uuid`) {
		t.Errorf("sending: error %v, want one that names the column", err)
	}
	_, err = w.sql.Exec(t.Context(), "BEGIN;"+w.earlierStatement("install"))
	if err == nil || !strings.Contains(err.Error(), "version 3, this program knows those up to 2: update this program") {
		t.Errorf("installing: error %v", err)
	}
	w.exec("ROLLBACK")
}

// A table without a recorded version is of the first version that has its type of id.
func TestTableWithoutARecordedVersion(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "new")
	w.version2("old")
	w.exec(`DELETE FROM %sholdfast_tables`)
	c := w.open()
	install(t, c, "new", "old")
	w.wantIDType("old", "text", textVersion)
	w.exec(`INSERT INTO %sholdfast_tables (name, version) VALUES ('new', 3)`) // which is not needed, and does no harm
	w.wantIDType("new", "uuid", tableVersion)
	send(t, c, to("new", msg("1")), to("old", msg("2")))
	receive(t, receiver(t, c, "new"), 1)
	receive(t, receiver(t, c, "old"), 1)
}

func TestCopiesOfAMessageAreRowsOfTheirOwn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.open()
	ok(t, c.(transport.Installer).Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: "in"}, {Name: "error", Shared: true}}}))
	for _, queue := range []string{"in", "error"} {
		send(t, c, to(queue, msg(anID)))
		send(t, c, to(queue, msg(anID)), to(queue, msg(anID)))
		for _, d := range receive(t, receiver(t, c, queue), 3) {
			if d.Message().ID != anID {
				t.Errorf("a copy has the id %q", d.Message().ID)
			}
		}
		var distinct, unique int
		ok(t, w.sql.QueryRow(t.Context(), `SELECT count(DISTINCT id), (SELECT count(*) FROM pg_index WHERE indrelid = to_regclass($1) AND indisunique AND NOT indisprimary)
FROM `+quote(w.schema, queue), quote(w.schema, queue)).Scan(&distinct, &unique))
		if want := map[string]int{"in": 0, "error": 1}[queue]; distinct != 3 || unique != want {
			t.Errorf("queue %q has %d ids and %d unique indexes, want 3 and %d", queue, distinct, unique, want)
		}
	}
}

package postgres

import (
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/brokertest/nservicebus"
	"github.com/holdfast-go/holdfast/transport"
)

// The names are in statements, in literals inside of them, and in statements that those generate.
func TestTablesAreTakenOverWhateverIsInTheirNames(t *testing.T) {
	t.Parallel()
	names := []string{
		`Net.Peer`, `a'b`, `a"b`, `$do$`, `$$`, `a\b`, `%s %`, `:name :'x' [y]`, `Ünï çödé`, "line\nend", `x'); DROP TABLE victim; --`,
		strings.Repeat("x", maxName-8), strings.Repeat("ü", 27),
	}
	for how, takeOver := range map[string]func(w *world, queues []transport.Queue){
		"by the installer": func(w *world, queues []transport.Queue) { ok(w.t, adopt(w.t.Context(), w.adopting(), queues...)) },
		"by the script": func(w *world, queues []transport.Queue) {
			if out, err := w.script(Transport{Adopt: true}, transport.Plan{Queues: queues}); err != nil {
				w.t.Fatalf("%v: %s", err, out)
			}
		},
	} {
		t.Run(how, func(t *testing.T) {
			w := newWorld(t, "victim")
			var queues []transport.Queue
			for _, name := range names {
				w.theySend(w.theirs(name), "1")
				queues = append(queues, own(name))
			}
			takeOver(w, queues)
			c := w.open()
			for _, name := range names {
				ok(t, receive(t, receiver(t, c, name), 1)[0].Complete(t.Context()))
				w.wantIDType(name, "uuid", tableVersion)
			}
			if w.count("victim") != 0 {
				t.Error("victim has rows")
			}
		})
	}
}

// A role that may use the tables, and not change them, runs with the setting where all is done.
func TestTheSettingNeedsNoRightsWhereAllIsTakenOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	peer := w.theirs("Net.Peer")
	queues := []transport.Queue{own("Net.Peer"), shared("error")}
	ok(t, adopt(t.Context(), w.adopting(), queues...))
	role := w.restricted()
	w.exec(`GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA ` + w.schema + ` TO ` + role)
	w.exec(`GRANT USAGE ON ALL SEQUENCES IN SCHEMA ` + w.schema + ` TO ` + role)
	c := w.openAs(Transport{Adopt: true, URL: testURL() + "&options=-c%20role%3D" + role})
	ok(t, adopt(t.Context(), c, queues...))
	w.theySend(peer, "1")
	send(t, c, to("Net.Peer", msg("2")))
	ds := receive(t, receiver(t, c, "Net.Peer"), 2)
	if ids := []string{ds[0].Message().ID, ds[1].Message().ID}; !slices.Equal(ids, []string{"1", "2"}) {
		t.Errorf("received %q", ids)
	}
}

// A table without a primary key has rows with equal ids, of which each gets its own.
func TestCopiesOfARowGetIDsOfTheirOwn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	address := nservicebus.Address(w.schema, "q")
	w.exec(strings.Replace(foreignQ, "uuid PRIMARY KEY", "uuid NOT NULL", 1))
	for range 3 {
		w.exec(`INSERT INTO %sq (id, headers, body) VALUES ($1, '{}', '')`, anID)
	}
	ok(t, adopt(t.Context(), w.adopting(), own("q")))
	var distinct int
	ok(t, w.sql.QueryRow(t.Context(), `SELECT count(DISTINCT id) FROM `+address).Scan(&distinct))
	if distinct != 3 {
		t.Errorf("%d ids of 3 rows", distinct)
	}
	w.wantUnique("q")
}

// wantUnique fails unless the ids of a queue have a unique index.
func (w *world) wantUnique(queue string) {
	w.t.Helper()
	var unique bool
	ok(w.t, w.sql.QueryRow(w.t.Context(), `SELECT `+uniqueColumn(w.store().table(queue), "id")).Scan(&unique))
	if !unique {
		w.t.Errorf("queue %q has no unique index on id", queue)
	}
}

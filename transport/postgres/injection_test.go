package postgres

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

// attacks are texts that would do harm in a statement which they became part of.
var attacks = []string{
	`'; DROP TABLE victim; --`, `"; DROP TABLE victim; --`, `"."victim`, `$1`, `$$; DROP TABLE victim; $$`, `\'; DROP TABLE victim; --`,
	`{"a": "'"}`, `-1 OR 1=1`, `%s%d`, "'\n;DROP TABLE victim;", `1)); DELETE FROM victim; --`, `{x,y}`, `NULL`,
}

// Whatever is in names, types, headers, ids and bodies is data; queue names are tried in
// TestNamesAreQuotedWhateverIsInThem too.
func TestSQLInWhateverUsersGiveIsData(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]Transport{"prepared": {}, "pooled": {Pooled: true}, "shared": {SubscriptionRouting: `"'; DROP TABLE victim; --`}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "victim")
			w.exec(`INSERT INTO %svictim (headers) VALUES ('{}')`)
			p.URL, p.Schema = testURL(), w.schema
			for _, attack := range attacks {
				attempt(t, p, attack)
			}
			if n := w.count("victim"); n != 1 {
				t.Errorf("%d rows in the victim, want its one", n)
			}
		})
	}
}

// attempt uses an attack as everything that it can be.
func attempt(t *testing.T, p Transport, attack string) {
	t.Helper()
	c, err := p.Open(t.Context(), transport.Env{Endpoint: attack, Instance: attack})
	ok(t, err)
	defer c.Close()
	queue := attack
	if strings.HasPrefix(attack, `"`) { // it would be an address
		isErr(t, c.(transport.Installer).Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: attack}}}), transport.ErrNoQueue)
		queue = quote(attack)
	}
	install(t, c, queue)
	m := &transport.Message{
		ID: attack, Body: []byte(attack),
		Headers: header.New(header.Field{Name: attack, Value: attack}),
	}
	later := to(queue, m)
	later.After, later.TTL = time.Hour, time.Hour
	receipts := send(t, c, to(queue, m), later)
	ok(t, c.(transport.Subscriber).Subscribe(t.Context(), queue, []string{attack}))
	send(t, c, transport.Operation{Message: m, Types: []string{attack}})
	r := receiver(t, c, queue)
	ds := receive(t, r, 2)
	for _, d := range ds {
		got := d.Message()
		if got.ID != attack || string(got.Body) != attack || got.Headers.Get(attack) != attack {
			t.Errorf("message %+v, want one of %q", got, attack)
		}
	}
	for _, err := range r.(transport.Renewer).Renew(t.Context(), ds) {
		ok(t, err)
	}
	ok(t, completeWith(t, ds[0], transport.Operation{Message: m, Types: []string{attack}}))
	ok(t, ds[1].Retry(t.Context()))
	ok(t, c.(transport.Canceler).Cancel(t.Context(), receipts[1].Cancel))
	ok(t, c.(transport.Subscriber).Unsubscribe(t.Context(), queue, []string{attack}))
	_, err = c.(transport.Inspector).Inspect(t.Context(), queue)
	ok(t, err)
	for _, bad := range []string{attack, "1 OR 1=1@" + attack, fmt.Sprintf("%d@%s", -1, attack)} {
		isErr(t, c.(transport.Canceler).Cancel(t.Context(), bad), transport.ErrNotFound)
	}
}

func TestASchemaNameIsQuoted(t *testing.T) {
	t.Parallel()
	const schema = `x"; DROP SCHEMA public; --`
	w := newWorld(t)
	t.Cleanup(func() {
		if _, err := w.sql.Exec(context.Background(), "DROP SCHEMA IF EXISTS "+quote(schema)+" CASCADE"); err != nil {
			t.Error(err)
		}
	})
	p := Transport{URL: testURL(), Schema: schema}
	c, err := p.Open(t.Context(), transport.Env{})
	ok(t, err)
	install(t, c, "in")
	send(t, c, to("in", msg("1")))
	receive(t, receiver(t, c, "in"), 1)
	ok(t, c.Close())
}

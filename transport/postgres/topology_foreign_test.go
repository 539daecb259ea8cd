package postgres

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

// foreignTable has the columns of NServiceBus's queue tables.
const foreignTable = `CREATE TABLE %sforeign (id uuid PRIMARY KEY, expires timestamp, headers text NOT NULL, body bytea, seq serial UNIQUE)`

const anID = "0199a2f0-6f2b-7cc1-a4c5-4f1fd0c4c9a1"

func TestAQueueOfNServiceBusIsSentTo(t *testing.T) {
	t.Parallel()
	sent := func(id string) transport.Operation {
		op := to("foreign", msg(id))
		op.TTL = time.Hour
		return op
	}
	for name, dispatch := range map[string]func(*testing.T, *world, transport.Conn){
		"by itself": func(t *testing.T, _ *world, c transport.Conn) {
			send(t, c, sent(anID), to("out", msg("ours")), to("foreign", msg("no uuid")))
		},
		"with a completion": func(t *testing.T, _ *world, c transport.Conn) {
			send(t, c, to("in", msg("1")))
			d := receive(t, receiver(t, c, "in"), 1)[0]
			ok(t, completeWith(t, d, sent(anID), to("out", msg("ours")), to("foreign", msg("no uuid"))))
		},
		"in a handler's transaction": func(t *testing.T, w *world, c transport.Conn) {
			send(t, c, to("in", msg("1")))
			d := receive(t, receiver(t, c, "in"), 1)[0]
			ops := []transport.Operation{sent(anID), to("out", msg("ours")), to("foreign", msg("no uuid"))}
			for try := range 2 { // the first finds out what the table is
				tx, user := begun(t, d)
				ok(t, w.write(user, 1))
				err := tx.Complete(t.Context(), ops)
				if try == 1 {
					ok(t, err)
				} else if !tx.(transport.ConflictDetector).Conflict(err) {
					t.Fatalf("error %v, want one that has the attempt repeated", err)
				}
			}
			w.wantRows(0, 1, 1)
		},
		"in a user's transaction": func(t *testing.T, w *world, c transport.Conn) {
			tx, err := w.sql.Begin(t.Context())
			ok(t, err)
			_, err = c.(transport.TxDispatcher).DispatchIn(t.Context(), tx, []transport.Operation{sent(anID), to("out", msg("ours")), to("foreign", msg("no uuid"))})
			ok(t, err)
			ok(t, tx.Commit(t.Context()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newBiz(t)
			w.exec(foreignTable)
			dispatch(t, w, w.open())
			if n := w.count("out"); n != 1 {
				t.Errorf("%d rows in our own queue, want 1", n)
			}
			rows, err := w.sql.Query(t.Context(), `SELECT id::text, headers, body, coalesce(extract(epoch FROM expires - now() AT TIME ZONE 'UTC')::int, 0) FROM `+w.schema+`.foreign ORDER BY seq`)
			ok(t, err)
			type row struct {
				ID, Headers string
				Body        []byte
				Expires     int
			}
			all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
			ok(t, err)
			if len(all) != 2 {
				t.Fatalf("%d rows, want 2", len(all))
			}
			first := all[0]
			h, err := header.ParseJSON(first.Headers)
			ok(t, err)
			if first.ID == anID || h.Get(header.MessageID) != anID || string(first.Body) != "body of "+anID || first.Expires < 3500 || first.Expires > 3600 {
				t.Errorf("row %+v", first)
			}
			if all[1].Expires != 0 || all[1].ID == first.ID {
				t.Errorf("row %+v, want one with an id of its own that does not expire", all[1])
			}
		})
	}
}

// Two find out at once what a table is: the one that comes second has been refused for the same
// reason.
func TestAQueueOfNServiceBusIsFoundOutByTwoAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(foreignTable)
	s := w.store()
	units := []*tablequeue.Unit{{Rows: []tablequeue.Row{{Queue: "foreign", ID: anID, Headers: []byte("{}")}}}}
	tries := 0
	ok(t, s.detector.Repeat(t.Context(), units, func() error {
		if tries++; tries == 1 {
			ok(t, s.Flush(t.Context(), units)) // the first
			return &pgconn.PgError{Code: notNullViolation}
		}
		return nil
	}))
	if tries != 2 || w.count("foreign") != 1 {
		t.Errorf("%d tries, %d rows", tries, w.count("foreign"))
	}
}

// A queue of NServiceBus takes no delayed messages, and is not received from.
func TestLimitsOfAQueueOfNServiceBus(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	w.exec(foreignTable)
	c := w.open()
	for range 2 { // when that is not known yet, and when it is
		delayed := to("foreign", msg(anID))
		delayed.After = time.Minute
		_, err := c.Dispatch(t.Context(), []transport.Operation{delayed, to("in", msg("1"))})
		if got := failedOps(t, err); !slices.Equal(got, []int{0}) {
			t.Errorf("failed operations %v, want 0", got)
		}
		isErr(t, err, dialect.ErrDelay)
	}
	if n := w.count("in"); n != 2 {
		t.Errorf("%d messages beside it, want 2", n)
	}
	_, err := c.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: "foreign"})
	isErr(t, err, dialect.ErrForeign)
	install(t, c, "foreign") // such as a shared error queue
	send(t, c, to("foreign", msg(anID)))
	stats, err := c.(transport.Inspector).Inspect(t.Context(), "foreign")
	ok(t, err)
	if stats[0].Ready != 1 {
		t.Errorf("stats %+v", stats)
	}
}

func TestAForeignTableIsReportedAndNotRemoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	w.exec(foreignTable)
	c := w.open()
	plan := transport.Plan{Queues: []transport.Queue{{Name: "foreign"}, {Name: "in"}, {Name: "gone", Shared: true}}}
	found, err := c.(transport.Verifier).Verify(t.Context(), plan)
	ok(t, err)
	want := []transport.Finding{
		{Kind: "queue", Name: "foreign", State: transport.Differs, Detail: dialect.ErrForeign.Error()},
		{Kind: "queue", Name: "gone", State: transport.Missing},
	}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Error(diff)
	}
	plan.Queues = []transport.Queue{{Name: "foreign", Shared: true}}
	if found, err := c.(transport.Verifier).Verify(t.Context(), plan); err != nil || len(found) > 0 {
		t.Errorf("a shared queue that can be sent to: %v, %v", found, err)
	}
	isErr(t, c.(transport.Remover).Remove(t.Context(), "in", "foreign"), dialect.ErrForeign)
	if n := w.count("in") + w.count("foreign"); n != 0 {
		t.Errorf("%d rows", n)
	}
	w.exec(`DROP TABLE %sholdfast_subscriptions`)
	found, err = c.(transport.Verifier).Verify(t.Context(), transport.Plan{})
	ok(t, err)
	if len(found) != 1 || found[0].State != transport.Missing || found[0].Name != "subscriptions" {
		t.Errorf("without the table of subscriptions: %v", found)
	}
	ok(t, c.(transport.Remover).Remove(t.Context(), "in"))
}

func TestTheScriptLeavesAQueueOfNServiceBusAsItIs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(foreignTable)
	w.exec(`INSERT INTO %sforeign (id, headers) VALUES ($1, '{}')`, anID)
	before := w.columns("foreign")
	text, err := (&Transport{Schema: w.schema}).Script(plan("foreign", "in"))
	ok(t, err)
	for range 2 {
		w.exec(text)
	}
	if diff := cmp.Diff(before, w.columns("foreign")); diff != "" || w.count("foreign") != 1 {
		t.Errorf("it has been changed (-before +after), %d rows:\n%s", w.count("foreign"), diff)
	}
	c := w.open()
	send(t, c, to("in", msg("1")), to("foreign", msg("2")))
	receive(t, receiver(t, c, "in"), 1)
}

// What NServiceBus's senders insert: a uuid, the time of expiry in UTC without a zone, headers and
// body, from a session that may be in any zone.
func TestNServiceBusSendsToOurQueues(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	w.exec(`SET TIME ZONE 'Asia/Tokyo'`)
	insert := `INSERT INTO %sin (Id, Expires, Headers, Body) VALUES ($1::uuid, (now() AT TIME ZONE 'UTC') + $2::interval, $3, $4)`
	w.exec(insert, anID, "1 hour", `{"NServiceBus.MessageId":"`+anID+`","NServiceBus.ReplyToAddress":"\"public\".\"sales\""}`, []byte("hello"))
	w.exec(insert, "0199a2f0-6f2b-7cc1-a4c5-4f1fd0c4c9a2", "-1 second", `{}`, nil)
	r := receiver(t, w.open(), "in")
	m := receive(t, r, 1)[0].Message()
	if m.ID != anID || string(m.Body) != "hello" || m.Headers.Get(header.ReplyToAddress) != `"public"."sales"` {
		t.Errorf("message %+v", m)
	}
	nothing(t, r)
}

func TestAnAddressWithASchemaIsThatTable(t *testing.T) {
	t.Parallel()
	w, other := newWorld(t, "in"), newWorld(t, `sa"les`)
	c := w.open()
	send(t, c, to(quote(w.schema, "in"), msg("1")), to(quote(other.schema, `sa"les`), msg("2")))
	receive(t, receiver(t, c, "in"), 1)
	receive(t, receiver(t, other.open(), `sa"les`), 1)
	for _, bad := range []string{`"a"."` + dialect.SubscriptionTable + `"`, `"` + string(make([]byte, 64)) + `"."x"`} {
		if _, err := c.Dispatch(t.Context(), []transport.Operation{to(bad, msg("3"))}); err == nil {
			t.Errorf("%q was sent to", bad)
		}
	}
}

// A table of subscriptions of NServiceBus that is not used is named at the start and by Verify.
func TestUnusedSubscriptionRoutingIsNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	plan := transport.Plan{Queues: []transport.Queue{{Name: "in"}}}
	for _, test := range []struct {
		name  string
		table bool
		p     Transport
		names bool
	}{
		{"no table", false, Transport{}, false},
		{"not set", true, Transport{}, true},
		{"set", true, Transport{SubscriptionRouting: "SubscriptionRouting"}, false},
	} {
		if test.table {
			install(t, w.openAs(Transport{SubscriptionRouting: "SubscriptionRouting"}))
		}
		var log bytes.Buffer
		test.p.URL, test.p.Schema = w.url, w.schema
		c, err := test.p.Open(t.Context(), transport.Env{Endpoint: w.schema, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		ok(t, err)
		receiver(t, c, "in")
		receiver(t, c, "in")
		found, err := c.(transport.Verifier).Verify(t.Context(), plan)
		ok(t, err)
		if n := strings.Count(log.String(), "SubscriptionRouting of the Transport"); n > 1 || (n == 1) != test.names {
			t.Errorf("%s: named %d times at the start:\n%s", test.name, n, &log)
		}
		if got := strings.Contains(fmt.Sprint(found), "SubscriptionRouting"); got != test.names {
			t.Errorf("%s: Verify finds %v", test.name, found)
		}
		ok(t, c.Close())
	}
}

func TestSubscriptionsAreSharedWithNServiceBus(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "billing", "shipping")
	p := Transport{SubscriptionRouting: "SubscriptionRouting"}
	c := w.openAs(p)
	install(t, c)
	install(t, c)
	w.exec(`INSERT INTO %s"SubscriptionRouting" (QueueAddress, Endpoint, Topic) VALUES ($1, 'Shipping', 'Shop.Placed')`, quote(w.schema, "shipping"))
	for range 2 {
		ok(t, c.(transport.Subscriber).Subscribe(t.Context(), "billing", []string{"Shop.Placed", "Shop.Placed", "Shop.Cancelled"}))
	}
	publish := func(types ...string) { send(t, c, transport.Operation{Message: msg(anID), Types: types}) }
	publish("Shop.Placed", "Shop.Cancelled")
	if got := [2]int{w.count("billing"), w.count("shipping")}; got != [2]int{1, 1} {
		t.Errorf("copies %v, want one each", got)
	}
	ok(t, c.(transport.Subscriber).Unsubscribe(t.Context(), "billing", []string{"Shop.Placed"}))
	publish("Shop.Placed")
	if got := [2]int{w.count("billing"), w.count("shipping")}; got != [2]int{1, 2} {
		t.Errorf("copies after unsubscribing %v", got)
	}
	w.exec(`INSERT INTO %s"SubscriptionRouting" (QueueAddress, Endpoint, Topic) VALUES ($1, 'Old name', 'Shop.Sent'), ('shipping', 'Shipping', 'Shop.Sent')`,
		quote(w.schema, "shipping"))
	send(t, w.openAs(p), transport.Operation{Message: msg(anID), Types: []string{"Shop.Sent"}})
	if got := w.count("shipping"); got != 3 {
		t.Errorf("%d copies in a queue that two endpoints have subscribed for, want one more than 2", got)
	}
	w.exec(`DELETE FROM %s"SubscriptionRouting" WHERE Topic = 'Shop.Sent'`)
	missing, err := c.(transport.SubscriptionVerifier).VerifySubscriptions(t.Context(), "shipping", []string{"Shop.Placed", "Shop.Sent"})
	ok(t, err)
	if len(missing) != 1 || missing[0].Name != "Shop.Sent" {
		t.Errorf("missing subscriptions %v, want that for Shop.Sent", missing)
	}
	rows, err := w.sql.Query(t.Context(), `SELECT queueaddress || ' ' || endpoint || ' ' || topic FROM `+w.schema+`."SubscriptionRouting"`)
	ok(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	ok(t, err)
	slices.Sort(all)
	want := []string{quote(w.schema, "billing") + " " + w.schema + " Shop.Cancelled", quote(w.schema, "shipping") + " Shipping Shop.Placed"}
	if !slices.Equal(all, want) {
		t.Errorf("rows %q, want %q", all, want)
	}
	ok(t, c.(transport.Remover).Remove(t.Context(), "billing", "shipping"))
	var left int
	ok(t, w.sql.QueryRow(t.Context(), `SELECT count(*) FROM `+w.schema+`."SubscriptionRouting"`).Scan(&left))
	if left != 0 {
		t.Errorf("%d subscriptions of removed queues", left)
	}
}

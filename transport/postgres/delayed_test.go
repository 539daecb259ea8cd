package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest/nservicebus"
	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

// openEndpoint opens a Conn of the endpoint with a queue of that name.
func (w *world) openEndpoint(name string, p Transport) transport.Conn {
	w.t.Helper()
	p.URL, p.Schema = cmp.Or(p.URL, testURL()), w.schema
	c, err := p.Open(w.t.Context(), transport.Env{Endpoint: name, Instance: "one"})
	ok(w.t, err)
	w.t.Cleanup(func() { ok(w.t, c.Close()) })
	return c
}

// inZone returns the URL of the server with a time zone of its sessions.
func inZone(t *testing.T, zone string) string {
	u, err := url.Parse(testURL())
	ok(t, err)
	q := u.Query()
	q.Set("timezone", zone)
	u.RawQuery = q.Encode()
	return u.String()
}

// delay stores a message with an id, as an endpoint of NServiceBus with the queue sender does.
func (w *world) delay(sender, to, id string, after time.Duration) {
	w.t.Helper()
	m := nservicebus.Message{Headers: map[string]string{header.MessageID: id}, Body: []byte("body of " + id)}
	ok(w.t, nservicebus.Delay(w.t.Context(), w.sql, nservicebus.DelayedAddress(w.schema, sender), nservicebus.Address(w.schema, to), m, after))
}

func (w *world) delayedTable(sender string) {
	w.t.Helper()
	ok(w.t, nservicebus.CreateDelayed(w.t.Context(), w.sql, nservicebus.DelayedAddress(w.schema, sender)))
}

func relay(d transport.Delivery) []transport.Operation { return d.(transport.Relayer).Relay() }

// Delayed messages of NServiceBus are received when they are due.
func TestDelayedOfNServiceBusComeWhenDue(t *testing.T) {
	t.Parallel()
	for _, zone := range []string{"UTC", "Asia/Tokyo", "America/New_York"} {
		t.Run(zone, func(t *testing.T) {
			t.Parallel()
			const queue = `Net."Peer`
			w := newWorld(t, queue)
			w.exec(`SET TIME ZONE '` + zone + `'`)
			w.delayedTable(queue)
			w.delay(queue, queue, "late", time.Hour)
			inserted := time.Now()
			w.delay(queue, queue, "soon", 1500*time.Millisecond)
			w.delay(queue, queue, "due", -time.Second)
			r := receiver(t, w.openEndpoint(queue, Transport{URL: inZone(t, zone), Pooled: zone == "UTC"}), queue)
			for _, want := range []string{"due", "soon"} {
				d := receive(t, r, 1)[0]
				m := d.Message()
				if m.ID != want || string(m.Body) != "body of "+want || m.Headers.Len() != 1 || relay(d) != nil {
					t.Errorf("received %+v, which is sent on as %v; want %q", m, relay(d), want)
				}
				ok(t, d.Complete(t.Context()))
			}
			if early := 1500*time.Millisecond - time.Since(inserted); early > 0 {
				t.Errorf("received %v early", early)
			}
			if n := w.count(queue + ".Delayed"); n != 1 {
				t.Errorf("%d messages remain, want 1", n)
			}
		})
	}
}

func TestSeveralInstancesMoveEachDelayedMessageOnce(t *testing.T) {
	t.Parallel()
	const rows = 1000
	w := newWorld(t, "in")
	w.delayedTable("in")
	w.exec(`INSERT INTO %s"in.Delayed" (headers, due) SELECT '{"NServiceBus.MessageId":"' || n || '"}', now() AT TIME ZONE 'UTC' FROM generate_series(1, $1) AS n`, rows)
	for range 3 {
		receiver(t, w.openEndpoint("in", Transport{}), "in")
	}
	r := receiver(t, w.openEndpoint("in", Transport{}), "in")
	seen := map[string]int{}
	for _, d := range receive(t, r, rows) {
		seen[d.Message().ID]++
		if d.Message().Body == nil {
			t.Fatal("a null body, which NServiceBus cannot read, is in the queue")
		}
	}
	if len(seen) != rows || w.count("in.Delayed") != 0 {
		t.Errorf("%d different messages, %d remain", len(seen), w.count("in.Delayed"))
	}
}

func TestATableThatIsNoneOfDelayedMessagesIsLeftAlone(t *testing.T) {
	t.Parallel()
	for name, ddl := range map[string]string{
		"other columns": `CREATE TABLE %s"in.Delayed" (headers text, due timestamptz)`,
		"another type":  `CREATE TABLE %s"in.Delayed" (headers text, body bytea, due date)`,
		"a view":        `CREATE VIEW %s"in.Delayed" AS SELECT ''::text AS headers, ''::bytea AS body, now() AS due`,
		"partitions":    `CREATE TABLE %s"in.Delayed" (headers text, body bytea, due timestamptz) PARTITION BY RANGE (due)`,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "in")
			w.exec(ddl)
			found, err := w.store().HasDelayed(t.Context(), "in")
			if _, unfit := errors.AsType[*tablequeue.UnfitError](err); found || !unfit {
				t.Errorf("found %t, %v", found, err)
			}
		})
	}
	w := newWorld(t)
	long := strings.Repeat("q", maxName-len(".Delayed")+1)
	w.exec(`CREATE TABLE %s"` + (long + ".Delayed")[:maxName] + `" (headers text, body bytea, due timestamptz)`)
	for _, none := range []string{long, "in", "missing"} {
		if found, err := w.store().HasDelayed(t.Context(), none); found || err != nil {
			t.Errorf("queue %q: found %t, %v", none, found, err)
		}
	}
}

func TestAMessageForAnotherQueueIsToBeSentOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in", "out")
	insert := func(id, to string) {
		m := nservicebus.Message{Headers: map[string]string{header.MessageID: id, header.ForwardDestination: to}}
		ok(t, nservicebus.Send(t.Context(), w.sql, nservicebus.Address(w.schema, "in"), m))
	}
	own := []string{"in", `"in"`, nservicebus.Address(w.schema, "in")}
	others := []string{"out", nservicebus.Address(w.schema, "out"), nservicebus.Address("elsewhere", "in"), "", `"`, `""."x"`, strings.Repeat("x", 64)}
	for _, to := range slices.Concat(own, others) {
		insert("for "+to, to)
	}
	r := receiver(t, w.openEndpoint("in", Transport{}), "in")
	for _, d := range receive(t, r, len(own)+len(others)) {
		m, ops := d.Message(), relay(d)
		to := strings.TrimPrefix(m.ID, "for ")
		if _, found := m.Headers.Lookup(header.ForwardDestination); found || m.Headers.Len() != 1 {
			t.Errorf("%q: headers %v", m.ID, m.Headers)
		}
		if slices.Contains(own, to) != (ops == nil) || ops != nil && (ops[0].Queue != to || ops[0].Message != m) {
			t.Errorf("message %s is sent on as %+v", m.ID, ops)
		}
	}
}

// forwarding is a world with the queue in of an endpoint and the queue foreign of NServiceBus.
func forwarding(t *testing.T) (*world, transport.Conn, transport.Receiver) {
	w := newBiz(t)
	w.exec(foreignTable)
	c := w.openEndpoint("in", Transport{})
	return w, c, receiver(t, c, "in")
}

func delayed(id string, after time.Duration) transport.Operation {
	op := to("foreign", msg(id))
	op.After = after
	return op
}

// A delayed message for NServiceBus waits in the tables of its sender.
func TestDelayedForNServiceBusWaitsHere(t *testing.T) {
	t.Parallel()
	const soon = 50 * time.Millisecond
	for name, dispatch := range map[string]func(*testing.T, *world, transport.Conn, transport.Delivery){
		"by itself": func(t *testing.T, _ *world, c transport.Conn, _ transport.Delivery) {
			receipts := send(t, c, delayed("1", soon), to("out", msg("ours")), to("foreign", msg("now")), delayed("2", time.Hour))
			if receipts[0].Cancel == "" || receipts[1].Cancel != "" || receipts[3].Cancel == "" {
				t.Errorf("receipts %v", receipts)
			}
		},
		"at a time": func(t *testing.T, _ *world, c transport.Conn, _ transport.Delivery) {
			at := to("foreign", msg("1"))
			at.At = time.Now().Add(soon)
			send(t, c, at, to("out", msg("ours")), delayed("2", time.Hour), to("foreign", msg("now")))
		},
		"with a completion": func(t *testing.T, _ *world, _ transport.Conn, d transport.Delivery) {
			ok(t, completeWith(t, d, delayed("1", soon), to("out", msg("ours")), delayed("2", time.Hour), to("foreign", msg("now"))))
		},
		"in a handler's transaction": func(t *testing.T, w *world, _ transport.Conn, d transport.Delivery) {
			ops := []transport.Operation{delayed("1", soon), to("out", msg("ours")), delayed("2", time.Hour), to("foreign", msg("now"))}
			for try := range 2 { // the first detects the foreign table
				tx, user := begun(t, d)
				ok(t, w.write(user, 1))
				err := tx.Complete(t.Context(), ops)
				if try == 1 {
					ok(t, err)
				} else if !tx.(transport.ConflictDetector).Conflict(err) {
					t.Fatalf("error %v, want one that has the attempt repeated", err)
				}
			}
		},
		"in a user's transaction": func(t *testing.T, w *world, c transport.Conn, _ transport.Delivery) {
			tx, err := w.sql.Begin(t.Context())
			ok(t, err)
			ops := []transport.Operation{delayed("1", soon), to("out", msg("ours")), delayed("2", time.Hour), to("foreign", msg("now"))}
			receipts, err := c.(transport.TxDispatcher).DispatchIn(t.Context(), tx, ops)
			ok(t, err)
			ok(t, tx.Commit(t.Context()))
			if receipts[2].Cancel == "" {
				t.Errorf("receipts %v", receipts)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, c, r := forwarding(t)
			send(t, c, to("in", msg("trigger")))
			dispatch(t, w, c, receive(t, r, 1)[0])
			if n, beside := w.count("out"), w.count("foreign"); n != 1 || beside != 1 {
				t.Errorf("%d rows in our own queue, %d in the other, want 1 and 1", n, beside)
			}
			ds := receive(t, receiver(t, c, "in.forwards"), 1)
			ops := relay(ds[0])
			if m := ds[0].Message(); m.ID != "1" || len(ops) != 1 || ops[0].Queue != nservicebus.Address(w.schema, "foreign") {
				t.Fatalf("message %+v is sent on as %+v", m, ops)
			}
			ok(t, completeWith(t, ds[0], ops...))
			for _, want := range []string{"now", "1"} {
				m, err := nservicebus.Receive(t.Context(), w.sql, nservicebus.Address(w.schema, "foreign"))
				ok(t, err)
				if m == nil || m.Headers[header.MessageID] != want || m.Headers[header.ForwardDestination] != "" || string(m.Body) != "body of "+want {
					t.Errorf("NServiceBus received %+v, want %q", m, want)
				}
			}
			if n := w.count("in.forwards"); n != 1 {
				t.Errorf("%d messages wait, want 1", n)
			}
		})
	}
}

func TestADelayedMessageForNServiceBusIsCancelled(t *testing.T) {
	t.Parallel()
	w, c, _ := forwarding(t)
	for range 2 { // when it is not known that the table is foreign, and when it is
		receipts := send(t, c, delayed("1", time.Hour))
		ok(t, c.(transport.Canceler).Cancel(t.Context(), receipts[0].Cancel))
		isErr(t, c.(transport.Canceler).Cancel(t.Context(), receipts[0].Cancel), transport.ErrNotFound)
	}
	if n := w.count("in.forwards"); n != 0 {
		t.Errorf("%d messages wait, want none", n)
	}
}

// A delayed message for NServiceBus is refused if there is no table where it can wait.
func TestDelayedForNServiceBusIsRefused(t *testing.T) {
	t.Parallel()
	w, c, _ := forwarding(t)
	expiring := delayed("1", time.Minute)
	expiring.TTL = time.Minute
	sendOnly := w.openEndpoint("sender", Transport{})
	for range 2 {
		for want, refused := range map[string]struct {
			conn transport.Conn
			op   transport.Operation
		}{
			"that expire":                        {c, expiring},
			"this sender receives from no queue": {sendOnly, delayed("1", time.Minute)},
		} {
			_, err := refused.conn.Dispatch(t.Context(), []transport.Operation{refused.op, to("out", msg("beside"))})
			if got := failedOps(t, err); !slices.Equal(got, []int{0}) || !strings.Contains(err.Error(), want) {
				t.Errorf("failed operations %v, %v, want 0 and %q", got, err, want)
			}
			tx, err := w.sql.Begin(t.Context())
			ok(t, err)
			_, err = refused.conn.(transport.TxDispatcher).DispatchIn(t.Context(), tx, []transport.Operation{to("out", msg("beside")), refused.op})
			if got := failedOps(t, err); !slices.Equal(got, []int{1}) || !strings.Contains(err.Error(), want) {
				t.Errorf("in a transaction: failed operations %v, %v", got, err)
			}
			ok(t, tx.Commit(t.Context()))
		}
	}
	if n := w.count("out"); n != 4 {
		t.Errorf("%d messages beside it, want 4", n)
	}
	if n := w.count("foreign"); n != 0 {
		t.Errorf("%d messages in the foreign queue, want none", n)
	}
}

// unprivileged returns the URL of a user without the right to create tables in the world's schema.
func (w *world) unprivileged() string {
	w.t.Helper()
	user := w.schema + "_user"
	w.exec(`CREATE ROLE ` + user + ` LOGIN PASSWORD 'secret'`)
	w.t.Cleanup(func() {
		conn, err := pgx.Connect(context.Background(), testURL())
		ok(w.t, err)
		_, err = conn.Exec(context.Background(), `DROP OWNED BY `+user+`; DROP ROLE `+user)
		ok(w.t, err)
		_ = conn.Close(context.Background())
	})
	w.exec(`GRANT USAGE ON SCHEMA ` + w.schema + ` TO ` + user)
	w.exec(`GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA ` + w.schema + ` TO ` + user)
	w.exec(`GRANT USAGE ON ALL SEQUENCES IN SCHEMA ` + w.schema + ` TO ` + user)
	u, err := url.Parse(testURL())
	ok(w.t, err)
	u.User = url.UserPassword(user, "secret")
	return u.String()
}

// A missing right to create the table of forwards is reported.
func TestMissingRightToForwardsTable(t *testing.T) {
	t.Parallel()
	w, owner, _ := forwarding(t)
	c := w.openEndpoint("in", Transport{URL: w.unprivileged()})
	receiver(t, c, "in")
	_, err := c.Dispatch(t.Context(), []transport.Operation{delayed("1", time.Minute), to("out", msg("beside"))})
	if got := failedOps(t, err); !slices.Equal(got, []int{0}) {
		t.Fatalf("failed operations %v", got)
	}
	for _, want := range []string{`queue "in.forwards"`, "permission denied", "holdfast queues create", "holdfast sql script"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error has no %q: %v", want, err)
		}
	}
	install(t, owner, "in.forwards")
	w.exec(`GRANT ALL ON ALL TABLES IN SCHEMA ` + w.schema + ` TO ` + w.schema + `_user`)
	deadline := time.Now().Add(patience)
	for {
		_, err := c.Dispatch(t.Context(), []transport.Operation{delayed("1", time.Minute)})
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	if n := w.count("in.forwards"); n != 1 {
		t.Errorf("%d messages wait, want 1", n)
	}
}

func TestATableOfForwardsThatIsNoneOfOursIsReported(t *testing.T) {
	t.Parallel()
	w, c, _ := forwarding(t)
	refused := func(want string) {
		t.Helper()
		for range 2 {
			_, err := c.Dispatch(t.Context(), []transport.Operation{delayed("1", time.Minute)})
			if got := failedOps(t, err); !slices.Equal(got, []int{0}) || !strings.Contains(err.Error(), want) {
				t.Errorf("failed operations %v, %v, want 0 and %q", got, err, want)
			}
		}
	}
	w.exec(`CREATE TABLE %s"in.forwards" (note text)`)
	refused("its table is no queue")
	w.exec(`DROP TABLE %s"in.forwards"`)
	for deadline := time.Now().Add(patience); ; {
		_, err := c.Dispatch(t.Context(), []transport.Operation{delayed("1", time.Minute)})
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	_, err := handOver(t, w.openEndpoint("in.forwards", Transport{}), "in.forwards") // while it is known to be ours
	ok(t, err)
	refused("one of NServiceBus")
}

func TestASenderWithALongNameKeepsNoDelayedMessages(t *testing.T) {
	t.Parallel()
	for bytes, want := range map[int]bool{maxName - len(".forwards"): true, maxName - len(".forwards") + 1: false} {
		name := strings.Repeat("s", bytes)
		w := newWorld(t, name)
		w.exec(foreignTable)
		c := w.openEndpoint(name, Transport{})
		receiver(t, c, name)
		for range 2 {
			_, err := c.Dispatch(t.Context(), []transport.Operation{delayed("1", time.Hour)})
			if want != (err == nil) || !want && !strings.Contains(err.Error(), "has 64 bytes") {
				t.Errorf("a sender with %d bytes: %v", bytes, err)
			}
		}
	}
}

func TestASenderThatGivesUpDoesNotDisturbOthers(t *testing.T) {
	t.Parallel()
	_, c, _ := forwarding(t)
	expiring := delayed("0", time.Minute)
	expiring.TTL = time.Minute
	_, err := c.Dispatch(t.Context(), []transport.Operation{expiring}) // after which it is known that the table is foreign
	failedOps(t, err)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Dispatch(ended, []transport.Operation{delayed("1", time.Minute)}); err == nil {
		t.Error("a message was sent in a context that had ended")
	}
	send(t, c, delayed("2", time.Minute))
}

func TestARemovedTableOfForwardsIsCreatedAgain(t *testing.T) {
	t.Parallel()
	w, c, _ := forwarding(t)
	send(t, c, delayed("1", time.Minute))
	w.exec(`DROP TABLE %s"in.forwards"`)
	if _, err := c.Dispatch(t.Context(), []transport.Operation{delayed("2", time.Minute)}); err == nil {
		t.Fatal("a message was sent to a table that does not exist")
	}
	send(t, c, delayed("3", time.Minute))
	if n := w.count("in.forwards"); n != 1 {
		t.Errorf("%d messages wait, want 1", n)
	}
}

func TestSatellitesWaitForTheTableOfForwards(t *testing.T) {
	t.Parallel()
	w, c, _ := forwarding(t)
	found, err := c.(transport.Satellites).Satellites(t.Context())
	ok(t, err)
	if len(found) != 1 || found[0].Queue != "in.forwards" {
		t.Fatalf("satellites %+v", found)
	}
	waiting, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	isErr(t, found[0].Wait(waiting), context.DeadlineExceeded)
	exists := make(chan error, 1)
	go func() { exists <- found[0].Wait(t.Context()) }()
	send(t, c, delayed("1", time.Minute))
	ok(t, <-exists)
	other, err := w.openEndpoint("sender", Transport{}).(transport.Satellites).Satellites(t.Context())
	if err != nil || len(other) != 0 {
		t.Errorf("a sender without a queue: %+v, %v", other, err)
	}
	w.exec(fmt.Sprintf(`INSERT INTO %%s"in.forwards" (headers) VALUES ('{"%s":"x"}')`, header.MessageID))
	d := receive(t, receiver(t, c, "in.forwards"), 1)[0]
	_, err = found[0].Handle(t.Context(), d.Message())
	if relay(d) != nil || err == nil || !strings.Contains(err.Error(), header.ForwardDestination) {
		t.Errorf("a message without a destination: %v", err)
	}
}

package postgres

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

// hears returns the first queue that s is told of after tell.
func hears(t *testing.T, s *store, tell func()) (queue string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := s.Listen(ctx, tell, func(told string) { queue = told; cancel() })
	if queue == "" {
		t.Errorf("nothing was heard: %v", err)
	}
	return queue
}

// A schema with the longest possible name is listened to and sent to.
func TestSchemaWithTheLongestName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	schema := fmt.Sprintf("%07d", os.Getpid()%1e7) + strings.Repeat("ü", 28) // cut after 63 bytes, the channel would end within a letter
	w.exec(`DROP SCHEMA IF EXISTS ` + quote(schema) + ` CASCADE`)
	t.Cleanup(func() {
		_, err := w.sql.Exec(context.Background(), `DROP SCHEMA `+quote(schema)+` CASCADE`)
		ok(t, err)
	})
	p := Transport{URL: testURL(), Schema: schema}
	c, err := p.Open(t.Context(), transport.Env{})
	ok(t, err)
	defer c.Close()
	install(t, c, "in")
	s, err := p.store(t.Context(), transport.Env{})
	ok(t, err)
	defer s.Close()
	got := hears(t, s, func() {
		tx, err := w.sql.Begin(t.Context())
		ok(t, err)
		_, err = c.(transport.TxDispatcher).DispatchIn(t.Context(), tx, []transport.Operation{to("in", msg("1"))})
		ok(t, err)
		ok(t, tx.Commit(t.Context()))
	})
	if got != "in" {
		t.Errorf("heard of %q", got)
	}
}

func TestASendByAnAddressWithASchemaIsHeardOfThere(t *testing.T) {
	t.Parallel()
	here, there := newWorld(t), newWorld(t, "in")
	address := quote(there.schema, "in")
	for name, tell := range map[string]func(){
		"a notification": func() { ok(t, here.store().Notify(t.Context(), []string{address})) },
		"a transaction": func() {
			tx, err := here.sql.Begin(t.Context())
			ok(t, err)
			_, err = here.open().(transport.TxDispatcher).DispatchIn(t.Context(), tx, []transport.Operation{to(address, msg("1"))})
			ok(t, err)
			ok(t, tx.Commit(t.Context()))
		},
	} {
		if got := hears(t, there.store(), tell); got != "in" {
			t.Errorf("%s: heard of %q", name, got)
		}
	}
}

// An id is text of anybody's; it is stored as a header, without a NUL and without what is not
// UTF-8. A message without one has that of its row. A header that is not UTF-8 is refused.
func TestAnIDOfAnyBytesIsSent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	c := w.open()
	r := receiver(t, c, "in")
	for id, want := range map[string]string{"": "", "a\x00b": "a\ufffdb", "\xff\xfe": "\ufffd", strings.Repeat("x", 9000): strings.Repeat("x", 9000)} {
		m := &transport.Message{ID: id, Headers: header.New(header.Field{Name: "k\x00", Value: "\x00"})}
		send(t, c, to("in", m))
		d := receive(t, r, 1)[0]
		if id == "" {
			want = d.Message().ID
		}
		if got := d.Message(); got.ID == "" || got.ID != want || got.Headers.Get("k\x00") != "\x00" {
			t.Errorf("%q: received as %q with %v", id, got.ID, got.Headers)
		}
		ok(t, d.Complete(t.Context()))
	}
	m := &transport.Message{ID: "1", Headers: header.New(header.Field{Name: "k", Value: "\xff"})}
	if _, err := c.Dispatch(t.Context(), []transport.Operation{to("in", m)}); !errors.Is(err, transport.ErrContent) {
		t.Errorf("%v, want a refusal of the content", err)
	}
}

func TestHugeHeadersAndBodiesArriveWhole(t *testing.T) { // alone, because a write has 10 s
	w := newWorld(t, "in")
	c := w.open()
	m := msg("1")
	m.Headers.Set("trace", strings.Repeat("\"stack\"\n", 1<<18))
	m.Body = []byte(strings.Repeat("0123456789abcdef", 1<<20))
	send(t, c, to("in", m), to("in", msg("2")))
	got := receive(t, receiver(t, c, "in"), 1)[0].Message()
	if got.Headers.Get("trace") != m.Headers.Get("trace") || string(got.Body) != string(m.Body) {
		t.Errorf("%d bytes of headers and %d of body arrived", len(got.Headers.Get("trace")), len(got.Body))
	}
}

// What a receiver holds of a table that is dropped is lost with it; when there is a table again it
// goes on.
func TestATableThatIsDroppedAndMadeAgainIsReceivedFrom(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	c := w.open()
	r := receiver(t, c, "in")
	send(t, c, to("in", msg("1")), to("in", msg("2")))
	ds := receive(t, r, 2)
	w.exec(`DROP TABLE %s"in"`)
	isErr(t, ds[0].Complete(t.Context()), transport.ErrNoQueue)
	for _, err := range r.(transport.Renewer).Renew(t.Context(), ds) {
		isErr(t, err, transport.ErrNoQueue)
	}
	_, err := r.Receive(t.Context(), 1)
	isErr(t, err, transport.ErrNoQueue)
	_, err = c.Dispatch(t.Context(), []transport.Operation{to("in", msg("3"))})
	isErr(t, err, transport.ErrNoQueue)

	install(t, c, "in")
	send(t, c, to("in", msg("4")))
	d := receive(t, r, 1)[0]
	if d.Message().ID != "4" {
		t.Errorf("received %q", d.Message().ID)
	}
	isErr(t, ds[1].Complete(t.Context()), transport.ErrLeaseLost)
	ok(t, d.Complete(t.Context()))
}

// Connections to a server that takes no writes are given up.
// After a failover that leaves connections standing, what was the primary takes no writes.
func TestConnectionsToAStandbyAreGivenUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	s := w.store()
	for _, pool := range []*pgxpool.Pool{s.leases.Pool, s.writes.Pool} {
		var all []*pgxpool.Conn
		for range ownPool {
			c, err := pool.Acquire(t.Context())
			ok(t, err)
			_, err = c.Exec(t.Context(), `SET default_transaction_read_only = on`)
			ok(t, err)
			all = append(all, c)
		}
		for _, c := range all {
			c.Release()
		}
	}
	unit := &tablequeue.Unit{Rows: []tablequeue.Row{{Queue: "in", ID: "1", Headers: []byte("{}")}}}
	err := s.Flush(t.Context(), []*tablequeue.Unit{unit})
	if code(err) != readOnly || s.Classify(err) != tablequeue.Unavailable {
		t.Fatalf("class %v of %v", s.Classify(err), err)
	}
	ok(t, s.Flush(t.Context(), []*tablequeue.Unit{unit}))
	rows, _, err := s.Claim(t.Context(), claimOf("in", 1, 1), nil)
	ok(t, err)
	if len(rows) != 1 {
		t.Errorf("%d rows", len(rows))
	}
}

// A handler's statement fails on a standby, which is a primary when the failure is examined.
func TestAPromotedStandbyWasAnOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	s := w.store()
	h := beginOn(t, s, `SET default_transaction_read_only = on`)
	_, err := h.user.Exec(t.Context(), "CREATE TABLE never (id int)")
	if code(err) != readOnly {
		t.Fatal(err)
	}
	ok(t, h.Rollback(t.Context()))
	if !s.Outage(t.Context(), err) {
		t.Errorf("the failure is taken for the handler's own: %v", err)
	}

	other := w.store()
	h = beginOn(t, other, `SELECT 1`)
	_, err = h.user.Exec(t.Context(), `SET TRANSACTION READ ONLY`)
	ok(t, err)
	if _, err = h.user.Exec(t.Context(), "CREATE TABLE never (id int)"); code(err) != readOnly {
		t.Fatal(err)
	}
	ok(t, h.Rollback(t.Context()))
	if other.Outage(t.Context(), err) {
		t.Errorf("a failure of the handler's own is taken for an outage: %v", err)
	}
	other.writes.Close()
	if !other.Outage(t.Context(), err) {
		t.Error("a server that does not answer is taken for one that takes writes")
	}
}

// beginOn begins a handler's transaction on a session on which the statement was executed.
func beginOn(t *testing.T, s *store, statement string) *handlerTx {
	t.Helper()
	c, err := s.handlers.Acquire(t.Context())
	ok(t, err)
	_, err = c.Exec(t.Context(), statement)
	ok(t, err)
	c.Release()
	h, err := s.Begin(t.Context())
	ok(t, err)
	return h.(*handlerTx)
}

func TestATransactionOfAUsersThatTakesNoWritesIsHisOwn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	s := w.store()
	row := []tablequeue.Row{{Queue: "in", ID: "1", Headers: []byte("{}")}}
	ok(t, s.Flush(t.Context(), []*tablequeue.Unit{{Rows: row}}))
	rows, _, err := s.Claim(t.Context(), claimOf("in", 1, 1), nil)
	ok(t, err)
	before := s.writes.Stat().NewConnsCount()
	users := begin(t, users(t, testURL()))
	_, err = users.Exec(t.Context(), `SET TRANSACTION READ ONLY`)
	ok(t, err)
	if err := s.InsertIn(t.Context(), users, row); code(err) != readOnly {
		t.Errorf("sent: %v", err)
	}
	own, err := s.Begin(t.Context())
	ok(t, err)
	_, err = own.(*handlerTx).user.Exec(t.Context(), `SET TRANSACTION READ ONLY`)
	ok(t, err)
	unit := completions(rows, 1, func(int) string { return "in" })[0]
	if err := own.Complete(t.Context(), unit); code(err) != readOnly {
		t.Errorf("completed: %v", err)
	}
	ok(t, s.Flush(t.Context(), []*tablequeue.Unit{unit}))
	if n := s.writes.Stat().NewConnsCount() - before; n != 0 {
		t.Errorf("%d connections of the engine were given up", n)
	}
}

// There is a statement for each set of queues that handlers send to.
func TestStatementsPerSetOfDestinations(t *testing.T) {
	t.Parallel()
	const queues = 8
	names := make([]string, queues)
	for i := range names {
		names[i] = fmt.Sprint("out-", i)
	}
	w := newWorld(t, append(names, "in")...)
	s := w.store()
	count := s.writer.statements.Len
	c := w.open()
	var ops []transport.Operation
	for i := range 200 {
		ops = append(ops, to("in", msg(fmt.Sprint(i))))
	}
	send(t, c, ops...)
	for set := range 1 << queues / 4 { // batches that come to many sets
		rows, _, err := s.Claim(t.Context(), claimOf("in", int64(set+1), 3), nil)
		ok(t, err)
		ok(t, s.Flush(t.Context(), completions(rows, int64(set+1), func(i int) string { return names[(set>>i)%queues] })))
	}
	if n := count(); n > queues {
		t.Errorf("%d statements for messages that are sent on to one of %d queues each", n, queues)
	}
	sent := 0
	for _, q := range names {
		sent += w.count(q)
	}
	if sent != 192 || w.count("in") != 8 {
		t.Errorf("%d sent on, %d left", sent, w.count("in"))
	}
}

func claimOf(queue string, lease int64, limit int) tablequeue.Claim {
	return tablequeue.Claim{Queue: queue, Limit: limit, Lease: lease, For: time.Minute, Owner: "me"}
}

// completions complete rows, each with a message to another queue.
func completions(rows []tablequeue.Claimed, lease int64, out func(i int) string) (units []*tablequeue.Unit) {
	for i, r := range rows {
		units = append(units, &tablequeue.Unit{
			Verb: tablequeue.Delete, Queue: "in", Lease: tablequeue.Lease{Seq: r.Seq, ID: lease},
			Rows: []tablequeue.Row{{Queue: out(i), ID: r.ID, Headers: []byte("{}")}},
		})
	}
	return units
}

// If there are more transactions than connections, transactions wait for each other.
func TestMoreTransactionsThanConnections(t *testing.T) {
	t.Parallel()
	w := newBiz(t)
	c := w.openAs(Transport{MaxTx: 2})
	ok(t, c.(transport.Subscriber).Subscribe(t.Context(), "out", []string{"Shop.Paid"}))
	const n = 12
	for i := range n {
		send(t, c, to("in", msg(fmt.Sprint(i))))
	}
	var handlers sync.WaitGroup
	for i, d := range receive(t, receiver(t, c, "in"), n) {
		handlers.Go(func() {
			tx, err := d.(transport.Transactor).Begin(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			user, err := Tx(t.Context(), session{tx})
			if err == nil {
				err = w.write(user, i)
			}
			// To publish, the engine needs connections of its own while all of the handlers' are
			// taken.
			if err := errors.Join(err, tx.Complete(t.Context(), []transport.Operation{{Message: msg("paid"), Types: []string{"Shop.Paid"}}})); err != nil {
				t.Error(err)
			}
		})
	}
	handlers.Wait()
	w.wantRows(0, n, n)
}

// A statement that times out at the server has done nothing. Where the server breaks statements off
// that take long, what was asked has not happened and may be asked again.
func TestStatementTimeoutHasDoneNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	p := Transport{URL: testURL() + "&statement_timeout=100", Schema: w.schema}
	s, err := p.store(t.Context(), transport.Env{})
	ok(t, err)
	defer s.Close()
	unit := &tablequeue.Unit{Rows: []tablequeue.Row{{Queue: "in", ID: "1", Headers: []byte("{}")}}}
	lock, err := w.sql.Begin(t.Context())
	ok(t, err)
	_, err = lock.Exec(t.Context(), `LOCK TABLE `+w.schema+`.in`)
	ok(t, err)
	for what, err := range map[string]error{
		"send":  s.Flush(t.Context(), []*tablequeue.Unit{unit}),
		"claim": func() error { _, _, err := s.Claim(t.Context(), claimOf("in", 1, 1), nil); return err }(),
	} {
		if err == nil || s.Classify(err) != tablequeue.Impeded {
			t.Errorf("%s: class %v of %v", what, s.Classify(err), err)
		}
	}
	ok(t, lock.Rollback(t.Context()))
	ok(t, s.Flush(t.Context(), []*tablequeue.Unit{unit}))
	if n := w.count("in"); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
}

func TestTheReasonOfARetryIsTheRowsLastError(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	c := w.open()
	send(t, c, to("in", msg("1")))
	r := receiver(t, c, "in")
	for _, settle := range []struct {
		with func(transport.Delivery) error
		want string
	}{
		{func(d transport.Delivery) error { return d.Retry(t.Context()) }, ""},
		{func(d transport.Delivery) error {
			return d.(transport.RetryReasoner).RetryBecause(t.Context(), "no\x00 such 'order' \xff")
		}, "no\ufffd such 'order' \ufffd"},
		{func(d transport.Delivery) error { return d.Release(t.Context()) }, "no\ufffd such 'order' \ufffd"},
		{func(d transport.Delivery) error {
			return d.(transport.RetryReasoner).RetryBecause(t.Context(), strings.Repeat("ü", 3000))
		}, strings.Repeat("ü", 2048)},
	} {
		ok(t, settle.with(receive(t, r, 1)[0]))
		var got string
		ok(t, w.sql.QueryRow(t.Context(), `SELECT coalesce(last_error, '') FROM `+w.schema+`.in`).Scan(&got))
		if got != settle.want {
			t.Errorf("last error %.40q, want %.40q", got, settle.want)
		}
	}
}

package acceptance_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/internal/brokertest/nservicebus"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/postgres"
)

// The queue go is NServiceBus's, then of a Go endpoint, and NServiceBus's again. Each leaves
// waiting and delayed messages to the next one, of which half of the delayed ones are for the queue
// peer of another endpoint.

const (
	handOverVariable = "HOLDFAST_HAND_OVER" // what a process does: work, or hand over

	eachKind   = 300
	own        = "go"
	otherQueue = "peer"
)

// dated is a message that is not handled before Due, in microseconds since 1970.
type dated struct {
	N   int
	Due int64
}

// handOverWorker is a process of the Go endpoint, or one that hands its queue over.
func handOverWorker() error {
	place := os.Getenv(placeVariable)
	t := &postgres.Transport{URL: place, Lease: killLease}
	if os.Getenv(handOverVariable) == "work" {
		return runWorker(datedEndpoint(t))
	}
	conn, err := t.Open(context.Background(), transport.Env{Endpoint: own})
	if err != nil {
		return err
	}
	_, err = conn.(transport.HandOverer).HandOver(context.Background(), own, func(transport.HandOverProgress) {})
	return errors.Join(err, conn.Close())
}

func datedEndpoint(t transport.Transport) endpoint.Config {
	return endpoint.Config{
		Name: own, Transport: t, Concurrency: 8, Install: true, Transactions: endpoint.SendsAtomicWithReceive,
		Messages: []endpoint.Message{endpoint.Command[dated]("Mixed.Dated")}, Logger: slog.New(slog.DiscardHandler),
		Handlers: []endpoint.Handler{endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m dated) error {
			tx, err := postgres.Tx(ctx, s)
			if err == nil {
				_, err = tx.Exec(ctx, insertDone, m.N, m.Due)
			}
			return err
		})},
	}
}

const insertDone = `INSERT INTO done (n, early) VALUES ($1, to_timestamp($2::bigint / 1000000.0) > clock_timestamp())`

// relay is the queue go with its database.
type relay struct {
	t   *testing.T
	url string
	db  *pgxpool.Pool
	n   int // messages so far
}

func address(table string) string { return nservicebus.Address("public", table) }

func newRelay(t *testing.T) *relay {
	t.Helper()
	u, err := url.Parse(brokertest.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("timezone", "Asia/Tokyo")
	u.RawQuery = q.Encode()
	r := &relay{t: t, url: u.String()}
	r.db, err = pgxpool.New(t.Context(), r.url)
	r.ok(err)
	t.Cleanup(r.db.Close)
	for _, queue := range []string{own, otherQueue} {
		r.ok(nservicebus.CreateQueue(t.Context(), r.db, address(queue)))
	}
	r.ok(nservicebus.CreateDelayed(t.Context(), r.db, address(own+".Delayed")))
	r.exec(`ALTER TABLE peer ADD arrived timestamptz NOT NULL DEFAULT clock_timestamp()`)
	r.exec(`CREATE TABLE done (n int, early bool)`)
	return r
}

func (r *relay) ok(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *relay) exec(sql string, args ...any) {
	r.t.Helper()
	_, err := r.db.Exec(r.t.Context(), sql, args...)
	r.ok(err)
}

func (r *relay) count(sql string) (n int) {
	r.t.Helper()
	r.ok(r.db.QueryRow(r.t.Context(), sql).Scan(&n))
	return n
}

// next returns the headers and the body of the next message, which is due at that time.
func (r *relay) next(due time.Time) nservicebus.Message {
	r.n++
	body, err := json.Marshal(dated{N: r.n, Due: due.UnixMicro()})
	r.ok(err)
	return nservicebus.Message{Body: body, Headers: map[string]string{
		header.MessageID: fmt.Sprint(r.n), header.MessageIntent: "Send", header.EnclosedMessageTypes: "Mixed.Dated",
		header.ContentType: "application/json",
	}}
}

// fromNServiceBus stores the messages that NServiceBus leaves behind.
func (r *relay) fromNServiceBus() {
	r.t.Helper()
	began := time.Now() // before the transaction, whose time the delays begin at
	err := pgx.BeginFunc(r.t.Context(), r.db, func(tx pgx.Tx) error {
		for i := range eachKind {
			r.ok(nservicebus.Send(r.t.Context(), tx, address(own), r.next(began)))
			delay := time.Duration(2000+4*i) * time.Millisecond
			to := []string{own, otherQueue}[i%2]
			r.ok(nservicebus.Delay(r.t.Context(), tx, address(own+".Delayed"), address(to), r.next(began.Add(delay)), delay))
		}
		return nil
	})
	r.ok(err)
}

// fromGo stores the messages that the Go endpoint leaves behind. The delayed ones are due from then
// on.
func (r *relay) fromGo(after time.Duration) {
	r.t.Helper()
	conn, err := (&postgres.Transport{URL: r.url}).Open(r.t.Context(), transport.Env{Endpoint: own})
	r.ok(err)
	_, err = conn.OpenReceiver(r.t.Context(), transport.ReceiverOptions{Queue: own}) // so that it is no send-only endpoint
	r.ok(err)
	var ops []transport.Operation
	op := func(queue string, delay time.Duration) {
		m := r.next(time.Now().Add(delay))
		sent := &transport.Message{ID: m.Headers[header.MessageID], Body: m.Body}
		for name, value := range m.Headers {
			sent.Headers.Set(name, value)
		}
		ops = append(ops, transport.Operation{Queue: queue, Message: sent, After: delay})
	}
	for i := range eachKind {
		op(own, 0)
		op([]string{own, otherQueue}[i%2], after+time.Duration(4*i)*time.Millisecond)
	}
	_, err = conn.Dispatch(r.t.Context(), ops)
	r.ok(errors.Join(err, conn.Close()))
}

// process starts a process that works, or hands over.
func (r *relay) process(doing string) *worker {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), handOverVariable+"="+doing, placeVariable+"="+r.url)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	r.ok(err)
	r.ok(cmd.Start())
	return &worker{cmd, stdin}
}

// until waits until the query returns at least n.
func (r *relay) until(sql string, n int) {
	r.t.Helper()
	for deadline := time.Now().Add(timeLimit); r.count(sql) < n; {
		if time.Now().After(deadline) {
			r.t.Fatalf("%s: %d, want %d", sql, r.count(sql), n)
		}
		r.exec(`SELECT pg_sleep(0.01)`)
	}
}

const (
	handled   = `SELECT count(*) FROM done`
	forwarded = `SELECT count(*) FROM peer`
)

// verify fails unless each of the owner's messages was handled once and each of the others was
// forwarded once, after they were due.
func (r *relay) verify() {
	r.t.Helper()
	want := r.n * 3 / 4
	if n := r.count(handled); n != want || r.count(`SELECT count(DISTINCT n) FROM done`) != want {
		r.t.Errorf("%d messages were handled, %d different ones, want %d", n, r.count(`SELECT count(DISTINCT n) FROM done`), want)
	}
	if n := r.count(`SELECT count(*) FROM done WHERE early`); n != 0 {
		r.t.Errorf("%d messages were handled early", n)
	}
	const number = `(convert_from(body, 'UTF8')::json->>'N')::int`
	if n := r.count(forwarded); n != r.n/4 || r.count(`SELECT count(DISTINCT `+number+`) FROM peer`) != r.n/4 {
		r.t.Errorf("%d messages were forwarded, want %d different ones", n, r.n/4)
	}
	if n := r.count(`SELECT count(*) FROM peer WHERE arrived < to_timestamp((convert_from(body, 'UTF8')::json->>'Due')::bigint / 1000000.0)`); n != 0 {
		r.t.Errorf("%d messages were forwarded early", n)
	}
	if n := r.count(`SELECT count(*) FROM done WHERE n IN (SELECT ` + number + ` FROM peer)`); n != 0 {
		r.t.Errorf("%d messages of the other endpoint were handled", n)
	}
}

// nserviceBus is an endpoint of NServiceBus, whose connection breaks once while it handles a
// message.
func (r *relay) nserviceBus(messages int) {
	r.t.Helper()
	breakAt := messages / 4
	var db *pgx.Conn
	for seen := 0; r.count(handled) < r.n*3/4 || r.count(forwarded) < r.n/4; {
		if db == nil || db.IsClosed() {
			var err error
			db, err = pgx.Connect(r.t.Context(), r.url)
			r.ok(err)
			defer db.Close(context.Background())
		}
		_, err := nservicebus.MoveDue(r.t.Context(), db, address(own+".Delayed"), address(own), 100)
		r.ok(err)
		for found := true; found && err == nil; {
			found, err = nservicebus.Handle(r.t.Context(), db, address(own), func(tx pgx.Tx, m *nservicebus.Message) error {
				var d dated
				r.ok(json.Unmarshal(m.Body, &d))
				_, err := tx.Exec(r.t.Context(), insertDone, d.N, d.Due)
				if seen++; seen == breakAt {
					_ = db.PgConn().Conn().Close()
				}
				return err
			})
		}
		if err != nil && !db.IsClosed() {
			r.t.Fatal(err)
		}
		nextLook(r.t.Context())
	}
}

// takeOver makes the table of NServiceBus one of the Go endpoint.
func (r *relay) takeOver() {
	r.t.Helper()
	conn, err := (&postgres.Transport{URL: r.url, Adopt: true}).Open(r.t.Context(), transport.Env{Endpoint: own})
	r.ok(err)
	err = conn.(transport.Installer).Install(r.t.Context(), transport.Plan{Queues: []transport.Queue{{Name: own}}})
	r.ok(errors.Join(err, conn.Close()))
}

// A queue is taken over from NServiceBus and handed back, while the processes that do so are
// killed.
func TestQueueTakenOverAndHandedBack(t *testing.T) {
	t.Parallel()
	r := newRelay(t)
	r.fromNServiceBus()
	began := time.Now()
	r.takeOver()
	w := r.process("work")
	r.until(handled, 1)
	took := time.Since(began) // about as long as one process that hands over
	for _, part := range []int{r.n / 10, r.n / 2} {
		r.until(handled, part)
		w.kill(t)
		w = r.process("work")
	}
	r.until(handled, r.n*3/4)
	r.until(forwarded, r.n/4)
	w.stop(t)
	r.verify()

	r.fromGo(max(8*time.Second, 5*took)) // the hand-over with its kills comes first
	r.handOverWithKills()
	r.nserviceBus(2 * eachKind)
	r.verify()
	for _, table := range []string{own, own + ".Delayed", own + ".forwards"} {
		if n := r.count(`SELECT count(*) FROM ` + address(table)); n != 0 {
			t.Errorf("%d messages remain in %s", n, table)
		}
	}

	r.takeOver() // once more
	r.fromGo(time.Second)
	w = r.process("work")
	r.until(handled, r.n*3/4)
	r.until(forwarded, r.n/4)
	w.stop(t)
	r.verify()
}

// handOverWithKills kills the process that hands over: while some messages are moved, and others,
// of which one is locked, are not; and at random times.
func (r *relay) handOverWithKills() {
	r.t.Helper()
	tx, err := r.db.Begin(r.t.Context())
	r.ok(err)
	_, err = tx.Exec(r.t.Context(), `SELECT FROM go WHERE visible_at > now() LIMIT 1 FOR UPDATE`)
	r.ok(err)
	w := r.process("hand over")
	r.until(`SELECT count(*) FROM "go.Delayed"`, eachKind/2)
	w.kill(r.t)
	r.ok(tx.Rollback(r.t.Context()))
	if n := r.count(`SELECT count(*) FROM go WHERE visible_at > now()`); n != eachKind/2 {
		r.t.Fatalf("%d messages are not moved yet: that proves nothing", n)
	}
	for range 3 {
		if r.handedOver() {
			return
		}
		w = r.process("hand over")
		r.exec(`SELECT pg_sleep($1)`, rand.Float64()/5)
		w.kill(r.t)
	}
	if !r.handedOver() {
		r.ok(r.process("hand over").cmd.Wait())
	}
}

func (r *relay) handedOver() bool {
	return r.count(`SELECT count(*) FROM pg_attribute WHERE attrelid = 'go'::regclass AND attname = 'lease_id'`) == 0
}

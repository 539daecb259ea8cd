package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

// kill ends every connection of the world's transports at the server.
func (w *world) kill() int64 {
	w.t.Helper()
	return w.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE $1`, "holdfast "+w.schema+"%")
}

func TestAKilledConnectionLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	_, pooled := brokertest.PgBouncer(t)
	proxy, err := url.Parse(pooled)
	ok(t, err)
	server, err := url.Parse(testURL())
	ok(t, err)
	proxy.Path = server.Path
	t.Run("straight", func(t *testing.T) {
		t.Parallel()
		loseNothing(t, Transport{}, 2000, 20*time.Millisecond)
	})
	t.Run("through pgbouncer", func(t *testing.T) { // where each takes two of its own along
		t.Parallel()
		loseNothing(t, Transport{URL: proxy.String(), Pooled: true, ListenURL: testURL()}, 800, 100*time.Millisecond)
	})
}

// loseNothing forwards n messages while connections are killed. A kill waits until a message has
// been forwarded since the kill before: on a slow machine nothing would be forwarded otherwise.
func loseNothing(t *testing.T, p Transport, n int, every time.Duration) {
	w := newWorld(t, "in", "out")
	c := w.openAs(p)
	var ops []transport.Operation
	for i := range n {
		ops = append(ops, to("in", msg(fmt.Sprint(i))))
	}
	send(t, c, ops...)
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	var workers sync.WaitGroup
	for range 4 {
		r := receiver(t, c, "in")
		workers.Go(func() { forward(ctx, r) })
	}
	killed, last := int64(0), -1
	for ctx.Err() == nil {
		now := w.count("out")
		if now == n {
			break
		}
		if now > last {
			killed += w.kill()
			last = now
		}
		_ = backoff.Sleep(ctx, every)
		w.exec(`UPDATE %sin SET visible_at = now() WHERE ctid = ANY (ARRAY(SELECT ctid FROM %sin
			WHERE visible_at > now() AND random() < 0.02 FOR UPDATE SKIP LOCKED))`) // leases run out
	}
	cancel()
	workers.Wait()
	var distinct int
	ok(t, w.sql.QueryRow(t.Context(), `SELECT count(DISTINCT id) FROM `+quote(w.schema, "out")).Scan(&distinct))
	if got := w.count("out"); got != n || distinct != n || w.count("in") != 0 {
		t.Errorf("%d copies of %d messages arrived, %d are left, want %d once and none", got, distinct, w.count("in"), n)
	}
	if killed == 0 {
		t.Error("no connection was killed")
	}
}

// forward sends on what it receives until ctx ends, whatever fails.
func forward(ctx context.Context, r transport.Receiver) {
	for ctx.Err() == nil {
		ds, err := r.Receive(ctx, 10)
		if err != nil {
			_ = backoff.Sleep(ctx, time.Millisecond)
			continue
		}
		var settles sync.WaitGroup
		for _, d := range ds {
			settles.Go(func() {
				out := []transport.Operation{{Message: d.Message(), Queue: "out"}}
				for errs := 0; errs < 20; errs++ {
					err := d.(transport.Completer).CompleteWith(ctx, out)
					if err == nil || errors.Is(err, transport.ErrLeaseLost) {
						return
					}
				}
			})
		}
		settles.Wait()
	}
}

// pgbouncer does not know the outcome of a statement when the server behind it crashes.
func TestAServerThatAProxyLostMayHaveCommitted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	straight, pooled := w.store(), w.pooled()
	for _, test := range []struct {
		s       *store
		message string
		want    tablequeue.Class
	}{
		{pooled, "server conn crashed?", tablequeue.Unknown},
		{pooled, "query timeout", tablequeue.Unknown},
		{pooled, "query_wait_timeout", tablequeue.Unavailable},
		{pooled, "server login has been failing, try again later (server_login_retry)", tablequeue.Unavailable},
		{straight, "invalid message", tablequeue.Unavailable},
	} {
		err := test.s.failed(&pgconn.PgError{Severity: "FATAL", Code: "08P01", Message: test.message}, "write")
		if got := test.s.Classify(err); got != test.want {
			t.Errorf("%s: class %d, want %d", test.message, got, test.want)
		}
	}
}

func TestWhatFoundNoConnectionWasNotSent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	u, err := url.Parse(testURL())
	ok(t, err)
	proxy := brokertest.NewProxy(t, u.Host)
	c := w.openAs(Transport{URL: proxy.URL(t, testURL())})
	proxy.Refuse()
	for name, ops := range map[string][]transport.Operation{
		"send":    {to("in", msg("1"))},
		"publish": {{Types: []string{"T"}, Message: msg("1")}},
	} {
		eventually(t, "another error of a "+name, func() string { // than that of a connection there was
			_, err := c.Dispatch(t.Context(), ops)
			if errors.Is(err, transport.ErrUnreachable) && !errors.Is(err, transport.ErrOutcomeUnknown) {
				return ""
			}
			return fmt.Sprint(err)
		})
	}
	proxy.Resume()

	s := w.store()
	for range ownPool {
		busy, err := s.writes.Acquire(t.Context())
		ok(t, err)
		defer busy.Release()
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	err = s.Flush(ctx, []*tablequeue.Unit{{Rows: []tablequeue.Row{{Queue: "in", ID: "1", Headers: []byte("{}")}}}})
	isErr(t, err, context.DeadlineExceeded)
	if got := s.Classify(err); got != tablequeue.Unavailable {
		t.Errorf("class %v of %v", got, err)
	}
}

// Everything works again after the server has ended all connections.
func TestKilledConnectionsAreReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in", "out")
	c := w.open()
	r := receiver(t, c, "in")
	send(t, c, to("in", msg("1")))
	d := receive(t, r, 1)[0]
	tx, user := begun(t, d)
	_, err := user.Exec(t.Context(), `SELECT 1`)
	ok(t, err)
	if w.kill() < 3 {
		t.Fatal("too few connections to kill")
	}
	if err := tx.Complete(t.Context(), []transport.Operation{to("out", msg("2"))}); err == nil {
		t.Error("a transaction on a killed connection was committed")
	}
	again := func(what string, do func() error) {
		t.Helper()
		for i := 0; ; i++ {
			err := do()
			if err == nil {
				return
			}
			if i == 10 {
				t.Fatalf("%s still fails: %v", what, err)
			}
		}
	}
	again("completing", func() error { return completeWith(t, d, to("out", msg("2"))) })
	again("sending", func() error {
		_, err := c.Dispatch(t.Context(), []transport.Operation{to("in", msg("3"))})
		return err
	})
	again("receiving", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err := r.Receive(ctx, 1)
		return err
	})
	if n := w.count("out"); n != 1 {
		t.Errorf("%d messages sent, want 1", n)
	}
}

func TestCloseLeavesNoGoroutineAndNoConnection(t *testing.T) { // alone, because it looks at all goroutines
	w := newWorld(t, "in")
	c := w.open()
	r := receiver(t, c, "in")
	send(t, c, to("in", msg("1")))
	begun(t, receive(t, r, 1)[0])
	received := make(chan error)
	go func() {
		_, err := r.Receive(context.Background(), 1)
		received <- err
	}()
	ok(t, c.Close())
	ok(t, c.Close())
	isErr(t, <-received, transport.ErrClosed)
	_, err := c.Dispatch(t.Context(), []transport.Operation{to("in", msg("2"))})
	isErr(t, err, transport.ErrClosed)
	_, err = c.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: "in"})
	isErr(t, err, transport.ErrClosed)
	_, err = c.(transport.Inspector).Inspect(t.Context())
	isErr(t, err, transport.ErrClosed)
	eventually(t, "goroutines of the transport", func() string {
		var b strings.Builder
		_ = pprof.Lookup("goroutine").WriteTo(&b, 1)
		for _, stack := range strings.Split(b.String(), "\n\n") {
			if strings.Contains(stack, "pgxpool") || strings.Contains(stack, "tablequeue.") {
				return stack
			}
		}
		return ""
	})
	eventually(t, "connections", func() string {
		var n int
		ok(t, w.sql.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE $1`,
			"holdfast "+w.schema+"%").Scan(&n))
		if n == 0 {
			return ""
		}
		return fmt.Sprint(n)
	})
}

// eventually waits until look finds nothing.
func eventually(t *testing.T, what string, look func() string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	left := look()
	for left != "" && backoff.Sleep(ctx, 10*time.Millisecond) == nil {
		left = look()
	}
	if left != "" {
		t.Errorf("%s left: %s", what, left)
	}
}

func TestNoErrorShowsThePassword(t *testing.T) {
	t.Parallel()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	addr := closed.Addr().String()
	ok(t, closed.Close())
	for _, url := range []string{
		"",
		"postgres://me:s3cret@" + addr + "/test",
		"host=127.0.0.1 port=1 user=me password=s3cret",
		"postgres://me:s3cret@host:notaport/test",
		"postgres://me:s3cr%zzs3cret@host/test",
		"postgres://me:a/s3cret@host/test",
		"postgres://me:a@s3cret#b@host/test",
		"password='s3cret",
		"postgres://me:s3cret@host/test?sslmode=s3cret",
		"postgres://me:s3cret@host/test?pool_max_conns=x",
	} {
		p := Transport{URL: url}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		_, err := p.Open(ctx, transport.Env{})
		cancel()
		if err == nil || strings.Contains(err.Error(), "s3cret") || !strings.HasPrefix(err.Error(), "postgres: ") {
			t.Errorf("Open(%q) = %v", url, err)
		}
	}
	for _, p := range []Transport{{URL: testURL(), Lease: -1}, {URL: testURL(), MaxTx: -1}} {
		if _, err := p.Open(t.Context(), transport.Env{}); err == nil {
			t.Errorf("Open(%+v) succeeded", p)
		}
	}
}

func TestNotificationsReachOtherProcessesOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	here, there := w.store(), w.store()
	ctx, cancel := context.WithCancel(t.Context())
	ready, heard, ended := make(chan struct{}), make(chan string, 10), make(chan error)
	go func() {
		ended <- here.Listen(ctx, func() { close(ready) }, func(queue string) { heard <- queue })
	}()
	<-ready
	ok(t, here.Notify(ctx, []string{"own"}))
	ok(t, there.Notify(ctx, []string{"with space", `"quoted"`}))
	for _, want := range []string{"with space", "quoted"} {
		if got := <-heard; got != want {
			t.Errorf("heard %q, want %q", got, want)
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Listen = %v", err)
	}
}

func TestAnIdleReceiverWakesForAnotherProcess(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	here, there := w.open(), w.open()
	r := receiver(t, here, "in")
	nothing(t, r)
	for i := range 5 {
		got := make(chan []transport.Delivery)
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			ds, _ := r.Receive(ctx, 1)
			got <- ds
		}()
		// Long enough idle for the pause to have grown to hundreds of milliseconds.
		_ = backoff.Sleep(t.Context(), 300*time.Millisecond)
		start := time.Now()
		send(t, there, to("in", msg(fmt.Sprint(i))))
		if len(<-got) != 1 {
			t.Fatal("nothing arrived")
		}
		t.Logf("woke after %v", time.Since(start))
	}
}

// databaseWith creates a database with options, and returns its URL.
func databaseWith(t *testing.T, options string) string {
	t.Helper()
	admin, err := pgx.Connect(t.Context(), testURL())
	ok(t, err)
	t.Cleanup(func() { closeSoon(admin) })
	name := fmt.Sprintf("holdfast_options_%d_%d", os.Getpid(), schemas.Add(1))
	_, err = admin.Exec(t.Context(), "CREATE DATABASE "+name+" "+options)
	ok(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_, err := admin.Exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)")
		ok(t, err)
	})
	u, err := url.Parse(testURL())
	ok(t, err)
	u.Path = "/" + name
	return u.String()
}

// A database that cannot store every text is refused at the start, with its encoding.
func TestADatabaseThatIsNotUTF8IsRefused(t *testing.T) {
	t.Parallel()
	needServer(t)
	for _, encoding := range []string{"LATIN1", "SQL_ASCII"} {
		p := Transport{URL: databaseWith(t, "ENCODING '"+encoding+"' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")}
		_, err := p.Open(t.Context(), transport.Env{Endpoint: "e"})
		if err == nil || !strings.Contains(err.Error(), encoding) || !strings.Contains(err.Error(), "UTF8") {
			t.Errorf("error %v, want one that names %s and UTF8", err, encoding)
		}
	}
}

// Settings of a role change the form of texts, and no message.
func TestSettingsOfARoleChangeNothing(t *testing.T) {
	t.Parallel()
	needServer(t)
	w := newWorldAt(t, databaseWith(t, ""), "in")
	for _, setting := range []string{"datestyle = 'German'", "client_encoding = 'LATIN1'", "intervalstyle = 'sql_standard'", "bytea_output = 'escape'"} {
		_, err := w.sql.Exec(t.Context(), "ALTER ROLE CURRENT_USER IN DATABASE "+w.database()+" SET "+setting)
		ok(t, err)
	}
	for _, p := range []Transport{{}, {Pooled: true}} {
		c := w.openAs(p)
		m := msg("ü😀")
		m.Headers.Set("text", "ü😀")
		send(t, c, to("in", m))
		d := receive(t, receiver(t, c, "in"), 1)[0]
		if got := d.Message().Headers.Get("text"); got != "ü😀" {
			t.Errorf("header %q", got)
		}
		ok(t, d.(transport.RetryReasoner).RetryBecause(t.Context(), "😀"))
		ok(t, receive(t, receiver(t, c, "in"), 1)[0].Complete(t.Context()))
		tx, err := w.sql.Begin(t.Context())
		ok(t, err)
		_, err = c.(transport.TxDispatcher).DispatchIn(t.Context(), tx, []transport.Operation{to("in", m)})
		ok(t, err)
		ok(t, tx.Commit(t.Context()))
		ok(t, receive(t, receiver(t, c, "in"), 1)[0].Complete(t.Context()))
	}
}

func (w *world) database() (name string) {
	w.t.Helper()
	ok(w.t, w.sql.QueryRow(w.t.Context(), "SELECT current_database()").Scan(&name))
	return name
}

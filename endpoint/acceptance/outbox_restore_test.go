package acceptance_test

import (
	"context"
	"database/sql"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

// arrival is a message that has arrived.
type arrival struct {
	n  int
	id string
}

// The database of an outbox is restored from a backup. What was stored at that time is sent again,
// under the same id. What was handled since is as unknown as its rows: it is handled when it is
// delivered again.
func TestARestoredDatabaseKnowsTheTimeOfItsBackup(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := &restored{path: filepath.Join(dir, "shop.db"), tried: make(chan struct{}, 100), arrived: make(chan arrival, 100)}
	r.broker.Fail = func(verb, object string) error {
		if verb == "Dispatch" && object == "worked" && r.away.Load() {
			r.tried <- struct{}{}
			return transport.ErrUnreachable
		}
		return nil
	}
	r.exec(t, `CREATE TABLE done (n int)`)
	stopNoting := r.start(t, "worked", nil, endpoint.Handle(func(_ context.Context, s *endpoint.Session, m worked) error {
		r.arrived <- arrival{m.N, s.MessageID()}
		return nil
	}))
	defer stopNoting()

	r.away.Store(true)
	stop := r.work(t)
	r.send(t, 1)
	<-r.tried // it is committed
	stop()
	backup := filepath.Join(dir, "backup.db")
	r.exec(t, `VACUUM INTO '`+backup+`'`)

	r.away.Store(false)
	stop = r.work(t)
	first := <-r.arrived
	r.send(t, 2)
	second := <-r.arrived
	stop()
	if diff := cmp.Diff([]int{1, 2}, r.rows(t)); diff != "" || first.n != 1 || second.n != 2 {
		t.Fatalf("%v and %v have arrived, the rows are %s", first, second, diff)
	}

	for _, suffix := range []string{"-wal", "-shm"} {
		_ = os.Remove(r.path + suffix) // which there may not be
	}
	if err := os.Rename(backup, r.path); err != nil {
		t.Fatal(err)
	}
	stop = r.work(t)
	again := <-r.arrived
	if diff := cmp.Diff([]int{1}, r.rows(t)); diff != "" || again != first {
		t.Errorf("%v has arrived again, want %v; the rows are %s", again, first, diff)
	}
	r.send(t, 1) // is recognized
	r.send(t, 2)
	if anew := <-r.arrived; anew.n != 2 || anew.id == second.id {
		t.Errorf("%v has arrived, want another message than %v for 2", anew, second)
	}
	stop()
	if diff := cmp.Diff([]int{1, 2}, r.rows(t)); diff != "" {
		t.Error(diff)
	}
}

// restored is a broker in memory and the database of an outbox.
type restored struct {
	broker  inmemory.Transport
	path    string
	away    atomic.Bool
	tried   chan struct{} // a dispatch that failed
	arrived chan arrival
}

// start runs an endpoint until the result is called.
func (r *restored) start(t *testing.T, name string, outbox transport.Transport, handler endpoint.Handler) (stop func()) {
	t.Helper()
	e, err := endpoint.New(endpoint.Config{
		Name: name, Transport: &r.broker, Outbox: outbox, Install: true, Concurrency: 1, StopTimeout: time.Second,
		Messages: []endpoint.Message{endpoint.Command[work]("Kill.Work").To("work"), endpoint.Command[worked]("Kill.Worked").To("worked")},
		Handlers: []endpoint.Handler{handler}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	if err := e.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// work runs the endpoint with the outbox.
func (r *restored) work(t *testing.T) (stop func()) {
	t.Helper()
	return r.start(t, "work", &sqlite.Transport{Path: r.path}, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m work) error {
		err := sqlite.OnCommit(ctx, s, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO done (n) VALUES (?)`, m.N)
			return err
		})
		if err != nil {
			return err
		}
		return s.Send(ctx, worked(m))
	}))
}

// send sends the work of that number, under one id however often it is sent.
func (r *restored) send(t *testing.T, n int) {
	t.Helper()
	e, err := endpoint.New(endpoint.Config{
		Name: "sender", Transport: &r.broker, SendOnly: true, Logger: slog.New(slog.DiscardHandler),
		Messages: []endpoint.Message{endpoint.Command[work]("Kill.Work").To("work")},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	if err := e.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	if err := e.Send(ctx, work{N: n}, endpoint.MessageID("work-"+string(rune('0'+n)))); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func (r *restored) open(t *testing.T) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+r.path+"?_busy_timeout=5000")
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func (r *restored) exec(t *testing.T, statement string) {
	t.Helper()
	db := r.open(t)
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

func (r *restored) rows(t *testing.T) (ns []int) {
	t.Helper()
	db := r.open(t)
	defer db.Close()
	rows, err := db.QueryContext(t.Context(), `SELECT n FROM done ORDER BY n`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var n int
		if err := rows.Scan(&n); err != nil {
			t.Fatal(err)
		}
		ns = append(ns, n)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return ns
}

package acceptance_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "modernc.org/sqlite"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/asb"
	"github.com/holdfast-go/holdfast/transport/postgres"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
	"github.com/holdfast-go/holdfast/transport/sqlite"
	"github.com/holdfast-go/holdfast/transport/sqs"
)

// The proof by kill: worker processes handle messages while they are killed at
// random, and in the end every message has been handled, what it sent is there
// once, and in atomic mode so is what it wrote.

const (
	workerVariable = "HOLDFAST_KILL_WORKER" // store and mode of a worker process
	placeVariable  = "HOLDFAST_KILL_PLACE"  // its file or URL
	killLease      = time.Second            // how long a killed worker's messages wait
)

func TestMain(m *testing.M) {
	for variable, worker := range map[string]func() error{
		workerVariable: killWorker, crashVariable: crashWorker, handOverVariable: handOverWorker, outboxVariable: outboxWorker,
		pointVariable: pointWorker, webVariable: webWorker, retryVariable: retryWorker, stateVariable: stateWorker,
		scheduleVariable: scheduleWorker,
	} {
		if os.Getenv(variable) == "" {
			continue
		}
		if err := worker(); err != nil {
			fmt.Fprintln(os.Stderr, "worker:", err)
			os.Exit(1)
		}
		return
	}
	brokertest.Parallel("12")
	os.Exit(m.Run())
}

type (
	work   struct{ N int }
	worked struct{ N int }
)

// killStore is where the messages and the handlers' rows are.
type killStore interface {
	transport() transport.Transport
	// write adds a row for n to the handlers' table, as part of the session's transaction.
	write(ctx context.Context, s *endpoint.Session, n int) error
	// exec and rows work on the handlers' table from outside.
	exec(ctx context.Context, statement string) error
	rows(ctx context.Context) ([]int, error)
	io.Closer
}

// openKillStore opens a store whose messages wait for killLease after a worker was killed.
func openKillStore(name, place string) (killStore, error) { return openStore(name, place, killLease) }

// openStore opens a store with a lease for databases. A test that kills no process gives a lease
// that no pause outlasts.
func openStore(name, place string, lease time.Duration) (killStore, error) {
	switch name {
	case "postgres":
		pool, err := pgxpool.New(context.Background(), place)
		return &postgresKills{url: place, lease: lease, pool: pool}, err
	case "quorum", "classic":
		return &rabbitKills{url: place, kind: rabbitmq.QueueType(name)}, nil
	case "servicebus":
		return &serviceBusKills{place: place}, nil
	case "sqs":
		return &sqsKills{place: place}, nil
	}
	db, err := sql.Open("sqlite", "file:"+place+"?_txlock=immediate&_pragma=busy_timeout(10000)")
	return &sqliteKills{path: place, lease: lease, db: db}, err
}

type sqliteKills struct {
	path  string
	lease time.Duration
	db    *sql.DB
}

func (k *sqliteKills) transport() transport.Transport {
	return &sqlite.Transport{Path: k.path, Lease: k.lease, Relaxed: true}
}

func (k *sqliteKills) write(ctx context.Context, s *endpoint.Session, n int) error {
	return sqlite.OnCommit(ctx, s, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO done (n) VALUES (?)`, n)
		return err
	})
}

func (k *sqliteKills) exec(ctx context.Context, statement string) error {
	_, err := k.db.ExecContext(ctx, statement)
	return err
}

func (k *sqliteKills) rows(ctx context.Context) (ns []int, err error) {
	rows, err := k.db.QueryContext(ctx, `SELECT n FROM done`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var n int
		if err := rows.Scan(&n); err != nil {
			return nil, err
		}
		ns = append(ns, n)
	}
	return ns, rows.Err()
}

func (k *sqliteKills) Close() error { return k.db.Close() }

type postgresKills struct {
	url   string
	lease time.Duration
	pool  *pgxpool.Pool
}

func (k *postgresKills) transport() transport.Transport {
	return &postgres.Transport{URL: k.url, Lease: k.lease}
}

func (k *postgresKills) write(ctx context.Context, s *endpoint.Session, n int) error {
	tx, err := postgres.Tx(ctx, s)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `INSERT INTO done (n) VALUES ($1)`, n)
	return err
}

func (k *postgresKills) exec(ctx context.Context, statement string) error {
	_, err := k.pool.Exec(ctx, statement)
	return err
}

func (k *postgresKills) rows(ctx context.Context) ([]int, error) {
	rows, err := k.pool.Query(ctx, `SELECT n FROM done`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int])
}

func (k *postgresKills) Close() error { k.pool.Close(); return nil }

// rabbitKills has queues only.
type rabbitKills struct {
	url  string
	kind rabbitmq.QueueType
}

func (k *rabbitKills) transport() transport.Transport {
	return &rabbitmq.Transport{URL: k.url, QueueType: k.kind}
}

func (k *rabbitKills) write(context.Context, *endpoint.Session, int) error {
	return errors.ErrUnsupported
}
func (k *rabbitKills) rows(context.Context) ([]int, error) { return nil, errors.ErrUnsupported }
func (k *rabbitKills) exec(context.Context, string) error  { return nil }
func (k *rabbitKills) Close() error                        { return nil }

// serviceBusKills has queues only, too. Its place is the administration's URL and a connection
// string.
type serviceBusKills struct {
	rabbitKills
	place string
}

func (k *serviceBusKills) transport() transport.Transport {
	admin, connection, _ := strings.Cut(k.place, " ")
	return &asb.Transport{ConnectionString: connection, Administration: admin, LockDuration: killLease}
}

// sqsKills has queues only, too. Its place is a URL and a prefix of queues.
type sqsKills struct {
	rabbitKills
	place string
}

func (k *sqsKills) transport() transport.Transport {
	url, prefix, _ := strings.Cut(k.place, " ")
	return &sqs.Transport{Endpoint: url, Config: awsConfig(), QueuePrefix: prefix, Lease: 2 * killLease, ShortDelays: true}
}

// killConfig is the endpoint of the workers.
func killConfig(store killStore, atomic bool) endpoint.Config {
	cfg := endpoint.Config{
		Name: "work", Transport: store.transport(), Concurrency: 8, Install: true,
		Messages: []endpoint.Message{endpoint.Command[work]("Kill.Work").To("work"), endpoint.Command[worked]("Kill.Worked").To("worked")},
		Logger:   slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
		Handlers: []endpoint.Handler{endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m work) error {
			if atomic {
				if err := store.write(ctx, s, m.N); err != nil {
					return err
				}
			}
			return s.Send(ctx, worked(m))
		})},
	}
	if atomic {
		cfg.Transactions = endpoint.SendsAtomicWithReceive
	}
	return cfg
}

// killWorker runs the endpoint until it is killed, or its standard input ends.
func killWorker() error {
	var name, mode string
	if _, err := fmt.Sscan(os.Getenv(workerVariable), &name, &mode); err != nil {
		return err
	}
	store, err := openKillStore(name, os.Getenv(placeVariable))
	if err != nil {
		return err
	}
	defer store.Close()
	return runWorker(killConfig(store, mode == "atomic"))
}

// runWorker runs an endpoint until standard input ends.
func runWorker(cfg endpoint.Config) error {
	e, err := endpoint.New(cfg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	if err := e.Run(ctx); !errors.Is(err, context.Canceled) { // its start may be cut short
		return err
	}
	return nil
}

func TestChaosKillsLoseNothingAndDoubleNothing(t *testing.T) {
	t.Parallel()
	brokertest.Fault(t)
	kills, messages := 20, 1500
	if os.Getenv("HOLDFAST_SOAK") != "" {
		kills, messages = 200, 30000
	}
	for _, store := range []string{"sqlite", "postgres"} {
		for _, mode := range []string{"atomic", "receiveonly"} {
			t.Run(store+" "+mode, func(t *testing.T) {
				t.Parallel()
				place := filepath.Join(t.TempDir(), "kill.db")
				if store == "postgres" {
					place = brokertest.Postgres(t)
				}
				p := &killProof{t: t, store: store, mode: mode, place: place, random: rand.New(rand.NewPCG(7, uint64(kills)))}
				p.run(kills, messages)
			})
		}
	}
}

type killProof struct {
	t                  *testing.T
	store, mode, place string
	random             *rand.Rand
	out                killStore
	conn               transport.Conn
	workers            [2]*worker
}

type worker struct {
	cmd   *exec.Cmd
	stdin io.Closer
}

func (p *killProof) run(kills, messages int) {
	ctx, cancel := context.WithTimeout(p.t.Context(), 10*time.Minute)
	defer cancel()
	p.prepare(ctx)
	p.send(ctx, numbers(messages))
	for i := range p.workers {
		p.workers[i] = p.startWorker()
	}
	for k := range kills {
		// A kill for each share of the messages done, at a random point of it.
		p.waitUntilLeft(ctx, messages-messages*k/(kills+1)-p.random.IntN(messages/(kills+1)))
		i := p.random.IntN(len(p.workers))
		p.workers[i].kill(p.t)
		p.workers[i] = p.startWorker()
	}
	p.waitUntilLeft(ctx, 0)
	for _, w := range p.workers {
		w.stop(p.t)
	}
	p.verify(ctx, messages)
}

// prepare makes queues and table.
func (p *killProof) prepare(ctx context.Context) {
	t := p.t
	out, err := openKillStore(p.store, p.place)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = out.Close() })
	p.out = out
	if p.conn, err = out.transport().Open(ctx, transport.Env{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.conn.Close(); err != nil {
			t.Error(err)
		}
	})
	plan := transport.Plan{Queues: []transport.Queue{{Name: "work"}, {Name: "worked"}, {Name: "error"}}}
	if err := errors.Join(p.conn.(transport.Installer).Install(ctx, plan), out.exec(ctx, `CREATE TABLE done (n int)`)); err != nil {
		t.Fatal(err)
	}
}

// numbers are those below n.
func numbers(n int) (ns []int) {
	for i := range n {
		ns = append(ns, i)
	}
	return ns
}

// send puts a message for each number into the queue.
func (p *killProof) send(ctx context.Context, ns []int) {
	ops := make([]transport.Operation, len(ns))
	for i, n := range ns {
		m := &transport.Message{ID: fmt.Sprint("m-", n), Body: fmt.Appendf(nil, `{"N":%d}`, n)}
		m.Headers = header.New(header.Field{Name: header.EnclosedMessageTypes, Value: "Kill.Work"}, header.Field{Name: header.MessageID, Value: m.ID})
		ops[i] = transport.Operation{Message: m, Queue: "work"}
	}
	for part := range slices.Chunk(ops, 500) {
		if _, err := p.conn.Dispatch(ctx, part); err != nil {
			p.t.Fatal(err)
		}
	}
}

// waitUntilLeft returns when no more than n messages are in the queue.
func (p *killProof) waitUntilLeft(ctx context.Context, n int) {
	p.t.Helper()
	look := time.NewTicker(2 * time.Millisecond)
	defer look.Stop()
	for {
		stats, err := p.conn.(transport.Inspector).Inspect(ctx, "work")
		if err != nil {
			p.t.Fatal(err)
		}
		left := stats[0].Ready + max(0, stats[0].Unsettled) + max(0, stats[0].Delayed)
		if left <= int64(n) {
			return
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			p.t.Fatalf("%d messages are left after all that time", left)
		}
	}
}

func (p *killProof) startWorker() *worker {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), workerVariable+"="+p.store+" "+p.mode, placeVariable+"="+p.place)
	cmd.Stderr = p.t.Output()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	w := &worker{cmd, stdin}
	p.t.Cleanup(func() { _ = cmd.Process.Kill() })
	return w
}

// kill ends the process as a crash does.
func (w *worker) kill(t *testing.T) {
	if err := w.cmd.Process.Kill(); err != nil {
		t.Errorf("a worker had ended before it was killed: %v", err)
	}
	_ = w.cmd.Wait()
}

func (w *worker) stop(t *testing.T) {
	_ = w.stdin.Close()
	if err := w.cmd.Wait(); err != nil {
		t.Errorf("a worker ended with %v", err)
	}
}

func (p *killProof) verify(ctx context.Context, messages int) {
	p.t.Helper()
	allOnce(p.t, "sent", messages, p.received(ctx, "worked"))
	if p.mode == "atomic" {
		rows, err := p.out.rows(ctx)
		if err != nil {
			p.t.Fatal(err)
		}
		allOnce(p.t, "written", messages, rows)
	}
	stats, err := p.conn.(transport.Inspector).Inspect(ctx, "error")
	if err != nil || stats[0].Ready != 0 {
		p.t.Errorf("the error queue has %+v, %v", stats, err)
	}
}

// received empties a queue and returns the numbers in it.
func (p *killProof) received(ctx context.Context, queue string) (ns []int) {
	r, err := p.conn.OpenReceiver(ctx, transport.ReceiverOptions{Queue: queue})
	if err != nil {
		p.t.Fatal(err)
	}
	defer r.Close()
	for {
		stats, err := p.conn.(transport.Inspector).Inspect(ctx, queue)
		if err != nil {
			p.t.Fatal(err)
		}
		if stats[0].Ready == 0 {
			return ns
		}
		ds, err := r.Receive(ctx, 200)
		if err != nil {
			p.t.Fatal(err)
		}
		var settling sync.WaitGroup
		for _, d := range ds {
			settling.Go(func() {
				if err := d.Complete(ctx); err != nil {
					p.t.Error(err)
				}
			})
			var n int
			if _, err := fmt.Sscanf(string(d.Message().Body), `{"N":%d}`, &n); err != nil {
				p.t.Fatal(err)
			}
			ns = append(ns, n)
		}
		settling.Wait()
	}
}

// allOnce checks that every number below messages is there exactly once.
func allOnce(t *testing.T, what string, messages int, ns []int) {
	t.Helper()
	times := make(map[int]int)
	for _, n := range ns {
		times[n]++
	}
	lost, doubled := 0, 0
	for n := range messages {
		switch times[n] {
		case 0:
			lost++
		case 1:
		default:
			doubled++
		}
	}
	if lost > 0 || doubled > 0 {
		t.Errorf("%s: %d of %d lost, %d doubled", what, lost, messages, doubled)
	}
}

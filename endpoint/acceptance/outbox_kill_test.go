package acceptance_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
)

// The proof of the outbox: worker processes write a row and send a message for each message that
// they handle, while they are killed, the broker's connections are cut and the database restarts.
// In the end each message has one row, and what was sent for it has one id: it may have arrived
// several times, and never without its row.

const (
	outboxVariable = "HOLDFAST_OUTBOX_WORKER"   // broker and database of a worker process
	storeVariable  = "HOLDFAST_OUTBOX_DATABASE" // the database's file or URL

	outboxWorkers = 3
)

// outboxWorker runs the endpoint until it is killed, or its standard input ends.
func outboxWorker() error {
	var broker, database string
	if _, err := fmt.Sscan(os.Getenv(outboxVariable), &broker, &database); err != nil {
		return err
	}
	queues, err := openKillStore(broker, os.Getenv(placeVariable))
	if err != nil {
		return err
	}
	defer queues.Close()
	rows, err := openKillStore(database, os.Getenv(storeVariable))
	if err != nil {
		return err
	}
	defer rows.Close()
	cfg := endpoint.Config{
		Name: "work", Transport: queues.transport(), Outbox: rows.transport(), Concurrency: 8, Install: true,
		Messages: []endpoint.Message{endpoint.Command[work]("Kill.Work"), endpoint.Command[worked]("Kill.Worked").To("worked")},
		Logger:   slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
		Handlers: []endpoint.Handler{endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m work) error {
			if err := rows.write(ctx, s, m.N); err != nil {
				return err
			}
			return s.Send(ctx, worked(m))
		})},
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	for ctx.Err() == nil { // again where the broker or the database was disturbed during its start
		e, err := endpoint.New(cfg)
		if err != nil {
			return err
		}
		if err := e.Run(ctx); err != nil && ctx.Err() == nil {
			_ = backoff.Sleep(ctx, 100*time.Millisecond)
		}
	}
	return nil
}

// outboxProof is one run.
type outboxProof struct {
	restartProof
	broker, database    string
	place, databaseAt   string
	full                bool
	random              *rand.Rand
	rows                killStore
	workers             [outboxWorkers]*worker
	cut, restart        func() // nil where the test cannot
	kills, cuts, starts int
}

func TestChaosKillsWithAnOutboxCommitOnce(t *testing.T) {
	t.Parallel()
	full := brokertest.Fault(t)
	for _, broker := range []string{"quorum", "sqs", "servicebus"} {
		for _, database := range []string{"postgres", "sqlite"} {
			t.Run(broker+" "+database, func(t *testing.T) {
				t.Parallel()
				p := &outboxProof{broker: broker, database: database, full: full, kills: 20, cuts: 3, starts: 2}
				p.t, p.messages = t, 1500
				if broker == "quorum" && database == "postgres" {
					p.kills, p.cuts, p.starts, p.messages = 60, 10, 5, 5000
				}
				if full && broker == "quorum" {
					p.kills, p.cuts, p.starts, p.messages = 1000, 200, 100, 100_000
				}
				p.run()
			})
		}
	}
}

func (p *outboxProof) run() {
	seed := uint64(7)
	if p.full {
		seed = uint64(time.Now().UnixNano())
	}
	p.t.Logf("seed %d", seed)
	p.random = rand.New(rand.NewPCG(seed, 1))
	ctx, cancel := context.WithTimeout(p.t.Context(), 2*time.Hour)
	defer cancel()
	p.prepare(ctx)
	p.preload(ctx)
	stop := p.takeNote(ctx)
	for i := range p.workers {
		p.workers[i] = p.startWorker()
	}
	began := time.Now()
	disturbances := p.disturbances()
	for i, disturb := range disturbances {
		p.arrived(ctx, p.messages*(i+1)/(len(disturbances)+1))
		disturb()
	}
	p.arrived(ctx, p.messages)
	took := time.Since(began)
	p.settled(ctx)
	for _, w := range p.workers {
		w.stop(p.t)
	}
	stop()
	p.verify(ctx)
	p.t.Logf("%d messages, %d kills, %d cuts, %d restarts of the database in %v", p.messages, p.kills, p.cuts, p.starts, took.Round(time.Second))
}

// prepare makes the brokers and the table of rows.
func (p *outboxProof) prepare(ctx context.Context) {
	t := p.t
	p.place = crashPlace(t, p.broker)
	if at, rest, _ := strings.Cut(p.place, " "); p.broker != "servicebus" { // whose clients find their way around a proxy
		address, err := url.Parse(at)
		if err != nil {
			t.Fatal(err)
		}
		proxy := brokertest.NewProxy(t, address.Host)
		p.place, p.cut = strings.TrimSpace(proxy.URL(t, at)+" "+rest), proxy.Cut
	}
	p.databaseAt = filepath.Join(t.TempDir(), "outbox.db")
	switch {
	case p.database != "postgres":
	case p.starts == 0:
		p.databaseAt = brokertest.Postgres(t)
	default:
		node := brokertest.OwnPostgres(t)
		p.databaseAt, p.restart = node.URL, func() { node.Restart(os.Kill) }
	}
	var err error
	if p.rows, err = openKillStore(p.database, p.databaseAt); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.rows.Close() })
	if err := p.rows.exec(ctx, `CREATE TABLE done (n int)`); err != nil {
		t.Fatal(err)
	}
	queues, err := openKillStore(p.broker, p.place)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = queues.Close() })
	p.open = queues.transport
	p.sent, p.progress = map[int]map[string]bool{}, make(chan struct{}, 1)
}

// takeNote runs the endpoint that takes note of what arrives.
func (p *outboxProof) takeNote(ctx context.Context) (stop func()) {
	noting := p.config("worked", endpoint.Handle(func(_ context.Context, s *endpoint.Session, m worked) error {
		p.note(m.N, s.MessageID())
		return nil
	}))
	e, err := endpoint.New(noting)
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			p.t.Error(err)
		}
	}
}

// disturbances are the kills, cuts and restarts in a random order.
func (p *outboxProof) disturbances() (all []func()) {
	add := func(n int, disturb func()) {
		for range n {
			all = append(all, disturb)
		}
	}
	add(p.kills, func() {
		i := p.random.IntN(len(p.workers))
		p.workers[i].kill(p.t)
		p.workers[i] = p.startWorker()
	})
	if p.cut == nil {
		p.cuts = 0
	}
	add(p.cuts, p.cut)
	if p.restart == nil {
		p.starts = 0
	}
	add(p.starts, p.restart)
	p.random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

func (p *outboxProof) startWorker() *worker {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), outboxVariable+"="+p.broker+" "+p.database, placeVariable+"="+p.place, storeVariable+"="+p.databaseAt)
	cmd.Stderr = p.t.Output()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = cmd.Process.Kill() })
	return &worker{cmd, stdin}
}

// settled returns when the outbox and the queue of the workers are empty.
func (p *outboxProof) settled(ctx context.Context) {
	p.t.Helper()
	for queue, at := range map[string]transport.Transport{"work": p.open(), "work.outbox": p.rows.transport()} {
		conn, err := at.Open(ctx, transport.Env{})
		if err != nil {
			p.t.Fatal(err)
		}
		look := time.NewTicker(20 * time.Millisecond)
		for {
			stats, err := conn.(transport.Inspector).Inspect(ctx, queue)
			if err == nil && stats[0].Ready+max(0, stats[0].Unsettled)+max(0, stats[0].Delayed) == 0 {
				break
			}
			select {
			case <-look.C:
			case <-ctx.Done():
				p.t.Fatalf("queue %q has %+v, %v", queue, stats, err)
			}
		}
		look.Stop()
		if err := conn.Close(); err != nil {
			p.t.Error(err)
		}
	}
}

func (p *outboxProof) verify(ctx context.Context) {
	t := p.t
	rows, err := p.rows.rows(ctx)
	if err != nil {
		t.Fatal(err)
	}
	allOnce(t, "written", p.messages, rows)
	p.mu.Lock()
	defer p.mu.Unlock()
	for n, ids := range p.sent {
		if len(ids) > 1 {
			t.Errorf("message %d was sent under %d ids: its handler's effects were committed as often", n, len(ids))
		}
	}
	slices.Sort(rows)
	for n := range p.sent {
		if _, found := slices.BinarySearch(rows, n); !found {
			t.Errorf("what message %d sends has arrived, and its row is missing", n)
		}
	}
	conn, err := p.open().Open(ctx, transport.Env{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, queue := range []string{"error", "work.quarantine"} {
		stats, err := conn.(transport.Inspector).Inspect(ctx, queue)
		if errors.Is(err, transport.ErrNoQueue) {
			continue
		}
		if err != nil || stats[0].Ready != 0 {
			t.Errorf("queue %q has %+v, %v", queue, stats, err)
		}
	}
}

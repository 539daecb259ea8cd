package acceptance_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/saga"
	"github.com/holdfast-go/holdfast/schedule"
	"github.com/holdfast-go/holdfast/transport"
)

// The proof of sagas and schedules: worker processes are killed at random, and in the end each
// message has changed three sagas once, and each occurrence of a schedule has one row.

const (
	stateVariable = "HOLDFAST_STATE_WORKER" // what the worker runs, its broker or "atomic", and its database

	stateWorkers  = 3
	manyKeys      = 50
	timedKeys     = 20
	killSchedules = 40
)

// kept is the state of each saga.
type kept struct{ N int }

type late struct{}

// countingSagas count each message: for one instance, for many, and with a time-out that is set or
// cancelled. No time-out is due while the test runs: one that is handled spoils the count.
func countingSagas() []endpoint.Handler {
	count := func(c *saga.Context[kept]) error {
		c.State.N++
		return nil
	}
	hot := saga.New("hot", saga.Start(func(work) string { return "one" },
		func(_ context.Context, c *saga.Context[kept], _ work) error { return count(c) }))
	many := saga.New("many", saga.Start(func(m work) string { return strconv.Itoa(m.N % manyKeys) },
		func(_ context.Context, c *saga.Context[kept], _ work) error { return count(c) }))
	timed := saga.New("timed",
		saga.Start(func(m work) string { return strconv.Itoa(m.N % timedKeys) },
			func(ctx context.Context, c *saga.Context[kept], m work) error {
				if m.N%3 == 0 {
					return errors.Join(count(c), c.CancelTimeout(ctx, "late"))
				}
				return errors.Join(count(c), c.SetTimeout(ctx, "late", late{}, endpoint.After(time.Hour)))
			}),
		saga.OnTimeout(func(_ context.Context, c *saga.Context[kept], _ late) error {
			c.State.N += 1_000_000
			return nil
		}))
	return slices.Concat(hot.Handlers(), many.Handlers(), timed.Handlers())
}

// dueRow is the number of the row of an occurrence.
func dueRow(n int, due time.Time) int { return int(due.Unix())*1000 + n }

type tick struct{ N int }

// stateConfig is the endpoint of a worker.
func stateConfig(what, broker string, rows killStore) (endpoint.Config, io.Closer, error) {
	cfg := endpoint.Config{
		Name: "work", Transport: rows.transport(), Transactions: endpoint.SendsAtomicWithReceive, Concurrency: 8, Install: true,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
		Messages: []endpoint.Message{
			endpoint.Command[work]("Kill.Work"), endpoint.Command[late]("Kill.Late"), endpoint.Command[tick]("Kill.Tick"),
		},
	}
	var queues io.Closer = io.NopCloser(nil)
	if broker != "atomic" {
		store, err := openKillStore(broker, os.Getenv(placeVariable))
		if err != nil {
			return cfg, nil, err
		}
		queues = store
		cfg.Transport, cfg.Outbox, cfg.Transactions = store.transport(), rows.transport(), endpoint.ReceiveOnly
	}
	if what == "sagas" {
		cfg.Handlers = countingSagas()
		return cfg, queues, nil
	}
	var c schedule.Config
	for n := range killSchedules {
		c.Schedules = append(c.Schedules, schedule.Schedule{
			Name: "every-" + strconv.Itoa(n), Every: time.Second, Message: tick{n},
			Missed: schedule.CatchUp, Overlap: schedule.AllowOverlap,
		})
	}
	scheduler, err := schedule.New(c)
	if err != nil {
		return cfg, nil, err
	}
	cfg.Handlers = []endpoint.Handler{endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m tick) error {
		run, _ := schedule.RunOf(ctx)
		return rows.write(ctx, s, dueRow(m.N, run.Due))
	})}
	scheduler.Apply(&cfg)
	return cfg, queues, nil
}

// stateWorker runs the endpoint until it is killed, or its standard input ends.
func stateWorker() error {
	var what, broker, database string
	if _, err := fmt.Sscan(os.Getenv(stateVariable), &what, &broker, &database); err != nil {
		return err
	}
	rows, err := openKillStore(database, os.Getenv(storeVariable))
	if err != nil {
		return err
	}
	defer rows.Close()
	cfg, queues, err := stateConfig(what, broker, rows)
	if err != nil {
		return err
	}
	defer queues.Close()
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	for ctx.Err() == nil { // again where the start was disturbed
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

// stateProof is one run.
type stateProof struct {
	t                      *testing.T
	what, broker, database string
	place, databaseAt      string
	kills                  int
	random                 *rand.Rand
	rows                   killStore
	workers                [stateWorkers]*worker
}

// stateProofs runs f on each broker and database, with the number of kills in the short and in the
// full form.
func stateProofs(t *testing.T, what string, short, long int, f func(ctx context.Context, p *stateProof, full bool)) {
	full := brokertest.Fault(t)
	for _, at := range [][2]string{{"quorum", "postgres"}, {"atomic", "postgres"}, {"atomic", "sqlite"}} {
		t.Run(at[0]+" "+at[1], func(t *testing.T) {
			t.Parallel()
			p := &stateProof{t: t, what: what, broker: at[0], database: at[1], kills: short}
			seed := uint64(7)
			if full {
				p.kills, seed = long, uint64(time.Now().UnixNano())
			}
			t.Logf("seed %d", seed)
			p.random = rand.New(rand.NewPCG(seed, 1))
			ctx, cancel := context.WithTimeout(t.Context(), cmp.Or(map[bool]time.Duration{true: 2 * time.Hour}[full], 10*time.Minute))
			defer cancel()
			p.prepare(ctx)
			f(ctx, p, full)
		})
	}
}

func (p *stateProof) prepare(ctx context.Context) {
	if p.broker != "atomic" {
		p.place = crashPlace(p.t, p.broker)
	}
	p.databaseAt = filepath.Join(p.t.TempDir(), "state.db")
	if p.database == "postgres" {
		p.databaseAt = brokertest.Postgres(p.t)
	}
	var err error
	p.rows, err = openKillStore(p.database, p.databaseAt)
	must(p.t, err)
	p.t.Cleanup(func() { _ = p.rows.Close() })
	must(p.t, p.rows.exec(ctx, `CREATE TABLE done (n bigint)`))
}

// start starts the workers.
func (p *stateProof) start() {
	for i := range p.workers {
		p.workers[i] = p.startWorker()
	}
}

func (p *stateProof) startWorker() *worker {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), stateVariable+"="+p.what+" "+p.broker+" "+p.database, placeVariable+"="+p.place,
		storeVariable+"="+p.databaseAt)
	cmd.Stderr = p.t.Output()
	stdin, err := cmd.StdinPipe()
	must(p.t, err)
	must(p.t, cmd.Start())
	p.t.Cleanup(func() { _ = cmd.Process.Kill() })
	return &worker{cmd, stdin}
}

// kill kills a worker and starts another one.
func (p *stateProof) kill() {
	i := p.random.IntN(len(p.workers))
	p.workers[i].kill(p.t)
	p.workers[i] = p.startWorker()
}

func (p *stateProof) stop() {
	for _, w := range p.workers {
		w.stop(p.t)
	}
}

// until waits until reached returns true.
func (p *stateProof) until(ctx context.Context, reached func() bool) {
	p.t.Helper()
	for !reached() {
		if err := backoff.Sleep(ctx, 50*time.Millisecond); err != nil {
			p.t.Fatal(err)
		}
	}
}

// states opens the database of the records.
func (p *stateProof) states(ctx context.Context) transport.Conn {
	p.t.Helper()
	conn, err := p.rows.transport().Open(ctx, transport.Env{Endpoint: "work"})
	must(p.t, err)
	p.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// failed checks that no message is in the error queue or in quarantine.
func (p *stateProof) failed(ctx context.Context) {
	p.t.Helper()
	at := p.rows.transport()
	if p.broker != "atomic" {
		queues, err := openKillStore(p.broker, p.place)
		must(p.t, err)
		defer queues.Close()
		at = queues.transport()
	}
	conn, err := at.Open(ctx, transport.Env{})
	must(p.t, err)
	defer conn.Close()
	for _, queue := range []string{"error", "work.quarantine"} {
		stats, err := conn.(transport.Inspector).Inspect(ctx, queue)
		must(p.t, err)
		if stats[0].Ready > 0 {
			p.t.Errorf("%d messages in queue %q", stats[0].Ready, queue)
		}
	}
}

func TestChaosKillsCountEachMessageInThreeSagas(t *testing.T) {
	t.Parallel()
	stateProofs(t, "sagas", 15, 1000, func(ctx context.Context, p *stateProof, full bool) {
		messages := 600
		if full {
			messages = 50_000
		}
		p.start()
		cfg, queues, err := p.sender()
		must(p.t, err)
		defer queues.Close()
		sender, err := endpoint.New(cfg)
		must(p.t, err)
		sending, stop := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- sender.Run(sending) }()
		must(p.t, sender.WaitReady(ctx))
		conn := p.states(ctx)
		counted := func() (n int) { return p.sum(ctx, conn, "hot") }
		sent := 0
		for i := range p.kills {
			for ; sent < messages*(i+1)/p.kills; sent++ {
				p.until(ctx, func() bool {
					err := sender.Send(ctx, work{sent})
					if errors.Is(err, transport.ErrOutcomeUnknown) {
						p.t.Fatal(err)
					}
					if err != nil { // a worker has yet to create the queue, or the queue to elect its leader
						p.t.Log(err)
					}
					return err == nil
				})
			}
			p.until(ctx, func() bool { return counted() >= sent-messages/p.kills })
			p.kill()
		}
		p.until(ctx, func() bool {
			return counted() >= messages && p.sum(ctx, conn, "many") >= messages && p.sum(ctx, conn, "timed") >= messages
		})
		stop()
		must(p.t, <-done)
		p.stop()
		for _, name := range []string{"hot", "many", "timed"} {
			if n := p.sum(ctx, conn, name); n != messages {
				p.t.Errorf("saga %s has counted %d of %d messages", name, n, messages)
			}
		}
		p.failed(ctx)
		stats, err := conn.(transport.Inspector).Inspect(ctx, "work.outbox")
		must(p.t, err)
		if n := stats[0].Ready + stats[0].Delayed; n > timedKeys {
			p.t.Errorf("%d rows wait in the outbox, and at most %d time-outs do", n, timedKeys)
		}
	})
}

// sender is the configuration of an endpoint that sends to the workers.
func (p *stateProof) sender() (endpoint.Config, io.Closer, error) {
	cfg := endpoint.Config{
		Name: "client", Transport: p.rows.transport(), SendOnly: true,
		Messages: []endpoint.Message{endpoint.Command[work]("Kill.Work").To("work")},
		Logger:   slog.New(slog.NewTextHandler(p.t.Output(), &slog.HandlerOptions{Level: slog.LevelError})),
	}
	if p.broker == "atomic" {
		return cfg, io.NopCloser(nil), nil
	}
	queues, err := openKillStore(p.broker, p.place)
	if err == nil {
		cfg.Transport = queues.transport()
	}
	return cfg, queues, err
}

// sum returns the sum of the states of a saga. A table that is not there yet has none.
func (p *stateProof) sum(ctx context.Context, conn transport.Conn, name string) (n int) {
	p.t.Helper()
	page := transport.RecordPage{Kind: stateful.KindOf("work", name), Limit: 100}
	records, err := conn.(transport.StateInspector).Records(ctx, page)
	if err != nil {
		if !errors.Is(err, transport.ErrNoQueue) {
			p.t.Error(err)
		}
		return 0
	}
	for _, r := range records {
		var s kept
		must(p.t, json.Unmarshal(r.State, &s))
		n += s.N
	}
	return n
}

func TestChaosKillsRunEachOccurrenceOnce(t *testing.T) {
	t.Parallel()
	stateProofs(t, "schedules", 8, 200, func(ctx context.Context, p *stateProof, full bool) {
		occurrences := 400
		if full {
			occurrences = 10_000
		}
		p.start()
		for i := range p.kills {
			p.until(ctx, func() bool { return len(p.written(ctx)) >= occurrences*i/p.kills })
			p.kill()
		}
		// An occurrence may run before an earlier occurrence of the schedule. If a gap stays, the
		// time limit ends the test.
		gap := ""
		defer func() {
			if gap != "" {
				p.t.Log(gap)
			}
		}()
		p.until(ctx, func() bool {
			rows := p.written(ctx)
			gap = gapOf(rows)
			return len(rows) >= occurrences && gap == ""
		})
		p.stop()
		rows := p.written(ctx)
		slices.Sort(rows)
		last := map[int]int{}
		for _, row := range rows {
			n, due := row%1000, row/1000
			if before, known := last[n]; known && due == before {
				t.Errorf("schedule %d has two rows of %v", n, time.Unix(int64(due), 0))
			}
			last[n] = due
		}
		if len(last) != killSchedules {
			t.Errorf("%d schedules have run, of %d", len(last), killSchedules)
		}
		p.failed(ctx)
		p.outcomes(ctx, len(rows))
		t.Logf("%d occurrences, %d kills", len(rows), p.kills)
	})
}

// gapOf names a schedule that has a row of an earlier and of a later occurrence, and no row between
// the two. The result is "" if every schedule has all rows.
func gapOf(rows []int) string {
	last := map[int]int{}
	for _, row := range slices.Sorted(slices.Values(rows)) {
		n, due := row%1000, row/1000
		if before, known := last[n]; known && due > before+1 {
			return fmt.Sprintf("schedule %d has no row between %v and %v", n, time.Unix(int64(before), 0), time.Unix(int64(due), 0))
		}
		last[n] = due
	}
	return ""
}

// written returns the rows of the handlers.
func (p *stateProof) written(ctx context.Context) []int {
	p.t.Helper()
	rows, err := p.rows.rows(ctx)
	must(p.t, err)
	return rows
}

// outcomes checks that each row has a job that succeeded.
func (p *stateProof) outcomes(ctx context.Context, rows int) {
	p.t.Helper()
	jobs, err := schedule.Inspect(p.states(ctx), "work")
	must(p.t, err)
	succeeded, interrupted := 0, 0
	for after := ""; ; {
		page, err := jobs.Jobs(ctx, true, after, 1000)
		must(p.t, err)
		for _, job := range page {
			if job.Status == schedule.Succeeded {
				succeeded++
			} else {
				p.t.Errorf("an occurrence has ended as %s: %+v", job.Status, job)
			}
			interrupted += job.Interrupted
		}
		if len(page) == 0 {
			break
		}
		after = page[len(page)-1].ID
	}
	if succeeded != rows {
		p.t.Errorf("%d jobs have succeeded, and there are %d rows", succeeded, rows)
	}
	p.t.Logf("%d runs were cut short by a kill", interrupted)
}

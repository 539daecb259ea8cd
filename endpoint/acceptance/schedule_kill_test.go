package acceptance_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/resilience"
	"github.com/holdfast-go/holdfast/schedule"
	"github.com/holdfast-go/holdfast/transport"
)

// The proof of schedules: two processes that run a schedule are killed at random, while its
// occurrences are queued, run and wait for a retry. In the end each occurrence has one row, and
// none is missing.

const scheduleVariable = "HOLDFAST_SCHEDULE_WORKER" // queues and database of a worker process

// scheduleWorker runs a schedule until it is killed, or its standard input ends. The first attempt
// at every third occurrence fails, and every other one takes a while.
func scheduleWorker() error {
	var broker, database string
	if _, err := fmt.Sscan(os.Getenv(scheduleVariable), &broker, &database); err != nil {
		return err
	}
	rows, err := openKillStore(database, os.Getenv(storeVariable))
	if err != nil {
		return err
	}
	defer rows.Close()
	s, err := schedule.New(schedule.Config{Schedules: []schedule.Schedule{{
		Name: "tick", Every: time.Second, Message: work{}, Missed: schedule.CatchUp, Overlap: schedule.AllowOverlap,
	}}})
	if err != nil {
		return err
	}
	cfg := endpoint.Config{
		Name: "work", Transport: rows.transport(), Concurrency: 4, Install: true, Transactions: endpoint.SendsAtomicWithReceive,
		Messages: []endpoint.Message{endpoint.Command[work]("Kill.Work")},
		Logger:   slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
		Handlers: []endpoint.Handler{endpoint.Handle(func(ctx context.Context, s *endpoint.Session, _ work) error {
			run, ok := schedule.RunOf(ctx)
			if !ok {
				return errors.New("the message is no job")
			}
			if err := rows.write(ctx, s, int(run.Due.Unix())); err != nil {
				return err
			}
			if n, _ := resilience.Attempt(ctx); run.Due.Unix()%3 == 0 && n == 1 {
				return errors.New("the first attempt fails")
			}
			if run.Due.Unix()%2 == 0 {
				return backoff.Sleep(ctx, 700*time.Millisecond)
			}
			return nil
		})},
	}
	cfg.Recoverability = recoverability.Config{Rules: []recoverability.Rule{{Retry: resilience.Deferred(resilience.Policy{
		Name: "killed", Retry: resilience.Retry{Max: 10, Delay: time.Second},
	})}}}
	if broker != database {
		queues, err := openKillStore(broker, os.Getenv(placeVariable))
		if err != nil {
			return err
		}
		defer queues.Close()
		cfg.Transport, cfg.Outbox, cfg.Transactions = queues.transport(), rows.transport(), endpoint.ReceiveOnly
	}
	s.Apply(&cfg)
	return runWorker(cfg)
}

func TestChaosKillsCommitEachOccurrenceOnce(t *testing.T) {
	t.Parallel()
	kills := 15
	if brokertest.Fault(t) {
		kills = 200
	}
	for _, stores := range [][2]string{{"sqlite", "sqlite"}, {"postgres", "postgres"}, {"quorum", "postgres"}} {
		t.Run(stores[0]+" "+stores[1], func(t *testing.T) {
			t.Parallel()
			p := &scheduleProof{t: t, broker: stores[0], database: stores[1], random: rand.New(rand.NewPCG(7, uint64(kills)))}
			p.run(kills)
		})
	}
}

type scheduleProof struct {
	t                 *testing.T
	broker, database  string
	place, databaseAt string
	random            *rand.Rand
	workers           [2]*worker
	rows              killStore
	inspector         *schedule.Inspector
}

func (p *scheduleProof) run(kills int) {
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Hour)
	defer cancel()
	p.prepare(ctx)
	for i := range p.workers {
		p.workers[i] = p.start()
	}
	var states []schedule.Status // of the jobs that had not ended when a process was killed
	for range kills {
		p.wait(ctx, time.Duration(200+p.random.IntN(1800))*time.Millisecond)
		if snapshot, err := p.inspector.Snapshot(ctx); err == nil { // there is no table yet
			for _, job := range snapshot.Jobs {
				states = append(states, job.Status)
			}
		}
		i := p.random.IntN(len(p.workers))
		p.workers[i].kill(p.t)
		p.workers[i] = p.start()
	}
	if !slices.Contains(states, schedule.WaitingRetry) || !slices.Contains(states, schedule.Running) {
		p.t.Errorf("no process was killed while a job ran, or while one waited: %v", states)
	}
	p.settle(ctx)
	for _, w := range p.workers {
		w.stop(p.t)
	}
	p.verify(ctx)
}

func (p *scheduleProof) prepare(ctx context.Context) {
	t := p.t
	p.databaseAt = filepath.Join(t.TempDir(), "schedule.db")
	if p.database == "postgres" {
		p.databaseAt = brokertest.Postgres(t)
	}
	if p.broker != p.database {
		p.place = crashPlace(t, p.broker)
	}
	var err error
	p.rows, err = openKillStore(p.database, p.databaseAt)
	must(t, err)
	t.Cleanup(func() { _ = p.rows.Close() })
	conn, err := p.rows.transport().Open(ctx, transport.Env{})
	must(t, err)
	t.Cleanup(func() { must(t, conn.Close()) })
	must(t, p.rows.exec(ctx, `CREATE TABLE done (n int)`))
	p.inspector, err = schedule.Inspect(conn, "work")
	must(t, err)
}

func (p *scheduleProof) start() *worker {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), scheduleVariable+"="+p.broker+" "+p.database, placeVariable+"="+p.place, storeVariable+"="+p.databaseAt)
	cmd.Stderr = p.t.Output()
	stdin, err := cmd.StdinPipe()
	must(p.t, err)
	must(p.t, cmd.Start())
	p.t.Cleanup(func() { _ = cmd.Process.Kill() })
	return &worker{cmd, stdin}
}

// wait lets the processes work.
func (p *scheduleProof) wait(ctx context.Context, d time.Duration) {
	p.t.Helper()
	must(p.t, backoff.Sleep(ctx, d))
}

// settle pauses the schedule, and returns when no job is left.
func (p *scheduleProof) settle(ctx context.Context) {
	p.t.Helper()
	for {
		err := p.inspector.SetState(ctx, "tick", schedule.Paused)
		if err == nil {
			break
		}
		p.t.Log(err) // its message may wait behind a kill
		p.wait(ctx, 100*time.Millisecond)
	}
	for {
		snapshot, err := p.inspector.Snapshot(ctx)
		must(p.t, err)
		if len(snapshot.Schedules) == 1 && snapshot.Schedules[0].Paused > 0 && len(snapshot.Jobs) == 0 {
			return
		}
		p.wait(ctx, 100*time.Millisecond)
	}
}

func (p *scheduleProof) verify(ctx context.Context) {
	p.t.Helper()
	rows, err := p.rows.rows(ctx)
	must(p.t, err)
	slices.Sort(rows)
	if len(rows) == 0 {
		p.t.Fatal("there is no row")
	}
	for i := range rows[1:] {
		if rows[i+1] != rows[i]+1 {
			p.t.Errorf("the row after %d is %d: an occurrence was committed twice, or is missing", rows[i], rows[i+1])
		}
	}
	snapshot, err := p.inspector.Snapshot(ctx)
	must(p.t, err)
	if s := snapshot.Schedules[0]; s.Missed != 0 || s.Skipped != 0 {
		p.t.Errorf("occurrences were left out: %+v", s)
	}
	succeeded, interrupted, retried := 0, 0, 0
	for after := ""; ; {
		jobs, err := p.inspector.Jobs(ctx, true, after, 500)
		must(p.t, err)
		for _, job := range jobs {
			if job.Status != schedule.Succeeded {
				p.t.Errorf("a job is %s: %+v", job.Status, job)
			}
			succeeded++
			interrupted += job.Interrupted
			retried += job.Attempt - 1 - job.Interrupted
		}
		if len(jobs) < 500 {
			break
		}
		after = jobs[len(jobs)-1].ID
	}
	if succeeded != len(rows) {
		p.t.Errorf("%d jobs have succeeded, with %d rows", succeeded, len(rows))
	}
	p.t.Logf("%d occurrences, %d retried attempts, %d interrupted ones", len(rows), retried, interrupted)
}

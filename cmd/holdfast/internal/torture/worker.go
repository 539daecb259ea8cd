package torture

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// assignment is what a worker is told, as JSON on its standard input.
type assignment struct {
	Load
	Name   string // of the run, its endpoint and its queue
	Worker int
	Folder string // for the journals
	Delays bool   // the transport has delays
}

func (a *assignment) errorQueue() string { return a.Name + ".error" }
func (a *assignment) table() string      { return a.Name + ".rows" }
func (a *assignment) id(n int) string    { return fmt.Sprintf("%s-%d", a.Name, n) }

// Job is the message that is sent.
type Job struct{ N int }

const (
	jobType = "Holdfast.Torture.Job"
	// ready is the line by which a worker says that it receives.
	ready = "ready\n"
	// retryDelay is that of every delayed retry.
	retryDelay = time.Second
)

// worker is one process, or what it is going to be.
type worker struct {
	assignment
	plan    *plan
	journal *journal
	rows    Rows
}

// Process is what a worker process has of its own.
type Process struct {
	In  io.Reader // standard input
	Out io.Writer // standard output
	Log *slog.Logger
}

// Work is a worker process: it reads its assignment from p.In and handles messages until that
// ends, as it does when whoever started the worker is gone, or ctx does. An error is one that
// it could not help; poison ends the process. rows may be nil.
func Work(ctx context.Context, p Process, t transport.Transport, rows Rows) error {
	w := &worker{}
	if err := json.NewDecoder(p.In).Decode(&w.assignment); err != nil {
		return fmt.Errorf("read the assignment: %w", err)
	}
	w.plan = newPlan(w.Load)
	if w.Atomic {
		w.rows = rows
	}
	var err error
	if w.journal, err = openJournal(w.Folder, w.Worker); err != nil {
		return err
	}
	e, err := w.endpoint(t, p.Log)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, p.In)
	}()
	go func() {
		if e.WaitReady(ctx) != nil {
			return // Run returns the error
		}
		_, _ = io.WriteString(p.Out, ready)
	}()
	return e.Run(ctx)
}

// endpoint is that of all workers.
func (w *worker) endpoint(t transport.Transport, log *slog.Logger) (*endpoint.Endpoint, error) {
	cfg := endpoint.Config{
		Name: w.Name, Transport: t, Concurrency: w.Concurrency, Logger: log,
		StopTimeout: stopTimeout(w.Load),
		Messages:    []endpoint.Message{endpoint.Command[Job](jobType)},
		Handlers:    []endpoint.Handler{endpoint.Handle(w.handle)},
		Recoverability: recoverability.Config{
			Immediate: 2, Delayed: 2, Delays: recoverability.Delays{Delay: retryDelay}, ErrorQueue: w.errorQueue(),
		},
	}
	if w.Atomic {
		cfg.Transactions = endpoint.SendsAtomicWithReceive
	}
	return endpoint.New(cfg)
}

// stopTimeout is how long a worker that is to stop may go on.
func stopTimeout(l Load) time.Duration { return l.Handler + 5*time.Second }

func (w *worker) handle(ctx context.Context, s *endpoint.Session, job Job) error {
	if err := w.journal.note(started, job.N); err != nil {
		return err
	}
	if err := backoff.Sleep(ctx, w.Handler); err != nil {
		return err
	}
	if way, poison := w.plan.poison[job.N]; poison {
		return die(way)
	}
	if err := w.failure(job.N); err != nil {
		return err
	}
	if w.rows != nil {
		return w.rows.write(ctx, s, w.table(), job.N)
	}
	return w.journal.note(done, job.N)
}

var errOrdinary = errors.New("an ordinary failure, on the first attempt")

// failure is the error of a message that is to fail. It does so the first time that any worker
// handles it, so that no policy gives it up.
func (w *worker) failure(n int) error {
	later, fails := w.plan.fails[n]
	if !fails {
		return nil
	}
	before, err := readJournals(w.Folder)
	if err != nil {
		return err
	}
	switch {
	case before.started[n] > 1:
		return nil
	case later && w.Delays:
		return recoverability.RetryAfter(errOrdinary, retryDelay)
	}
	return errOrdinary
}

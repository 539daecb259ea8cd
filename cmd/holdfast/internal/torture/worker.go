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
)

// assignment is the standard input of a worker, as JSON.
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
	// ready is the line that a worker writes when it receives.
	ready = "ready\n"
	// retryDelay is that of every delayed retry.
	retryDelay = time.Second
	// quarantineIdle is the least that an endpoint allows. A poison message whose worker has
	// crashed waits for so long, several times in a run.
	quarantineIdle = 5 * time.Second
)

// worker is one process.
type worker struct {
	assignment
	Subject
	plan    *plan
	journal journal
}

// Process are the streams of a worker process.
type Process struct {
	In  io.Reader // standard input
	Out io.Writer // standard output
	Log *slog.Logger
}

// Work is a worker process. It reads its assignment from p.In and handles messages until p.In ends,
// as it does when the parent process is gone, or until ctx ends. Poison ends the process.
func Work(ctx context.Context, p Process, s Subject) error {
	w := &worker{Subject: s}
	if err := json.NewDecoder(p.In).Decode(&w.assignment); err != nil {
		return fmt.Errorf("read the assignment: %w", err)
	}
	w.plan = newPlan(w.Load)
	var err error
	if w.journal, err = openJournal(w.Folder, w.Worker); err != nil {
		return err
	}
	e, err := w.endpoint(p.Log)
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

// endpoint returns the endpoint of all workers.
func (w *worker) endpoint(log *slog.Logger) (*endpoint.Endpoint, error) {
	cfg := endpoint.Config{
		Name: w.Name, Transport: w.Transport, Concurrency: w.Concurrency, Logger: log,
		StopTimeout: stopTimeout(w.Load),
		Messages:    []endpoint.Message{endpoint.Command[Job](jobType), endpoint.Command[Receipt](receiptType)},
		Handlers:    []endpoint.Handler{endpoint.Handle(w.handle)},
		Recoverability: recoverability.Config{
			Immediate: 2, Delayed: 2, Delays: recoverability.Delays{Delay: retryDelay}, ErrorQueue: w.errorQueue(),
			Quarantine: recoverability.Quarantine{Idle: quarantineIdle},
		},
	}
	switch w.Mode {
	case ReceiveOnly:
	case Atomic:
		cfg.Transactions = endpoint.SendsAtomicWithReceive
	case Outbox:
		cfg.Outbox = w.Outbox
	}
	return endpoint.New(cfg)
}

// stopTimeout bounds the stop of a worker.
func stopTimeout(l Load) time.Duration { return l.Handler + 5*time.Second }

func (w *worker) handle(ctx context.Context, s *endpoint.Session, job Job) error {
	if err := w.journal.note(started, job.N); err != nil {
		return err
	}
	if w.Mode == Outbox { // before anything fails, so that it has to be rolled back
		if err := w.add(ctx, s, job.N); err != nil {
			return err
		}
		if err := s.Send(ctx, Receipt(job), endpoint.To(w.receipts())); err != nil {
			return err
		}
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
	switch w.Mode {
	case Atomic:
		return w.add(ctx, s, job.N)
	case Outbox:
		return nil
	default:
		return w.journal.note(done, job.N)
	}
}

// add counts a handled message in the transaction of its handler.
func (w *worker) add(ctx context.Context, s *endpoint.Session, n int) error {
	return w.Table.Add(ctx, s, w.table(), n)
}

var errOrdinary = errors.New("an ordinary failure, on the first attempt")

// failure returns the error of a message that is to fail the first time that any worker handles it.
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

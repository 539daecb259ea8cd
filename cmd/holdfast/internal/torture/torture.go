// Package torture tests a transport by force. Worker processes handle numbered messages while they
// are killed at random and by poison messages. In the end the ledger of the workers is compared
// with the messages sent.
package torture

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/testbed"
	"github.com/holdfast-go/holdfast/transport"
)

// Load is the work of a run. All random choices follow from its numbers and Seed: the same Load has
// the same plan.
type Load struct {
	Messages, Poison     int           // the number of messages, and of those that kill their worker
	Workers, Concurrency int           // the number of processes, and the concurrency of the endpoint of each
	Handler              time.Duration // how long a handler works on a message
	KillEvery            time.Duration // the mean time between two kills; 0 for none
	MaxKills             int           // at most so many kills; 0 for no bound
	Failures             float64       // the share of messages whose first attempt fails with an error
	Mode                 Mode
	Seed                 uint64
}

// Mode says where handlers write that they have handled a message.
type Mode int

const (
	// ReceiveOnly is a file.
	ReceiveOnly Mode = iota
	// Atomic is a row in the transaction that completes the message.
	Atomic
	// Outbox is a row in the transaction that stores a message in an outbox.
	Outbox
)

// Subject is what is tested.
type Subject struct {
	Transport transport.Transport
	Outbox    transport.Transport // the database of the outbox in that mode
	Table     testbed.Table       // where handlers write; nil in the mode ReceiveOnly
}

// Options are the transport to test, and how.
type Options struct {
	Load
	Subject
	Worker  func(ctx context.Context) *exec.Cmd // the command of a worker process: a program that calls [Work]
	Timeout time.Duration                       // bounds how long the workers may take for all messages
	TempDir string                              // where the folder of the ledger is created; "" is that of the system
	Keep    bool                                // queues and ledger are kept even when every invariant holds
	// Progress receives lines for people, and WorkerLog the standard error of the workers, stack
	// traces of their deaths included. Several goroutines write to WorkerLog at once.
	Progress, WorkerLog io.Writer
	Log                 *slog.Logger
}

// ErrNotOffered is returned for atomic mode on a transport without it.
var ErrNotOffered = errors.New("the transport has no transactions that handlers can write in: use receiveonly")

// Check returns an error for numbers out of range.
func (l Load) Check() error {
	switch {
	case l.Messages < 1 || l.Workers < 1 || l.Concurrency < 1:
		return errors.New("messages, workers and concurrency must be at least 1")
	case l.Poison < 0 || l.Poison > l.Messages:
		return errors.New("poison must be between 0 and the number of messages")
	case l.MaxKills < 0:
		return errors.New("kills must not be negative")
	case l.Handler < 0 || l.KillEvery < 0:
		return errors.New("durations must not be negative")
	case l.Failures < 0 || l.Failures > 1:
		return errors.New("failures must be between 0 and 1")
	}
	return nil
}

// run is one call of Run.
type run struct {
	assignment
	opts     Options
	plan     *plan
	conn     transport.Conn
	database transport.Conn // of the outbox; nil without one
	workers  *workers
	start    time.Time
	killed   []Kill // that hit a running worker
}

// Run tests the transport. The report has the invariants that did not hold; an error means that
// there is no report. Queues and ledger have names of their own. They are kept when an invariant
// did not hold.
func Run(ctx context.Context, opts Options) (report *Report, err error) {
	if err := opts.Check(); err != nil {
		return nil, err
	}
	name := "torture-" + strings.ToLower(rand.Text()[:8])
	conn, err := opts.Transport.Open(ctx, transport.Env{Logger: opts.Log, Endpoint: name})
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	r := &run{opts: opts, conn: conn, plan: newPlan(opts.Load), start: time.Now()}
	r.assignment = assignment{Load: opts.Load, Name: name, Delays: conn.Limits().MaxDelay > 0}
	if _, ok := conn.(transport.Inspector); !ok {
		return nil, errors.New("the transport cannot count the messages of its queues")
	}
	if opts.Mode == Atomic && (opts.Table == nil || !conn.Limits().Atomic) {
		return nil, ErrNotOffered
	}
	if err := r.openOutbox(ctx); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.cleanUp(ctx, report, err)) }()
	if err := r.prepare(ctx); err != nil {
		return nil, fmt.Errorf("prepare: %w", err)
	}
	return r.prove(ctx)
}

// prepare creates queues and ledger.
func (r *run) prepare(ctx context.Context) (err error) {
	if r.Folder, err = os.MkdirTemp(r.opts.TempDir, r.Name+"-"); err != nil {
		return err
	}
	e, err := (&worker{assignment: r.assignment, Subject: r.opts.Subject}).endpoint(r.opts.Log)
	if err != nil {
		return err
	}
	if err := cmp.Or(e.Install(ctx), r.installReceipts(ctx)); err != nil || r.Mode == ReceiveOnly {
		return err
	}
	return r.opts.Table.Create(ctx, r.table(), r.Messages+1)
}

// prove runs the workers and returns the report.
func (r *run) prove(ctx context.Context) (*Report, error) {
	r.progress("%d messages to the queue %s, %d of them poison; %d workers; seed %d, plan %s",
		r.Messages, r.Name, r.Poison, r.Workers, r.Seed, r.plan.hash())
	left, err := r.work(ctx)
	if err != nil {
		return nil, err
	}
	seconds := time.Since(r.start).Seconds()
	records, err := r.records(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the ledger: %w", err)
	}
	parked, err := r.parked(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the error queue: %w", err)
	}
	if records.arrived, err = r.arrived(ctx); err != nil {
		return nil, fmt.Errorf("read the queue of receipts: %w", err)
	}
	report := verify(r.plan, &r.assignment, records, parked, left)
	report.Restarts, report.Seconds = r.workers.restarts(), seconds
	report.Kills, report.KillList = len(r.killed), r.killed
	if report.Kills == 0 && r.KillEvery > 0 {
		r.progress("all messages were processed before the first kill, which proves little: use more messages, or a longer handler")
	}
	return report, nil
}

// cleanUp removes queues and ledger, unless an invariant did not hold.
func (r *run) cleanUp(ctx context.Context, report *Report, failed error) error {
	queues := append(r.workQueues(), r.errorQueue())
	if r.Mode == Outbox {
		queues = append(queues, r.receipts())
	}
	if r.opts.Keep || ctx.Err() == nil && failed == nil && !report.OK() {
		r.progress("kept for inspection: the queues %s, and the ledger in %s", strings.Join(queues, ", "), r.Folder)
		return r.closeOutbox(ctx, true)
	}
	return errors.Join(os.RemoveAll(r.Folder), r.closeOutbox(ctx, false), testbed.CleanUp(ctx, r.conn, r.opts.Table, r.table(), queues...))
}

// progress writes a line for people.
func (r *run) progress(format string, args ...any) {
	fmt.Fprintf(r.opts.Progress, "%6.1fs  %s\n", time.Since(r.start).Seconds(), fmt.Sprintf(format, args...))
}

// records returns the journals of the workers. Where handlers write rows, these replace the ends of
// handlers.
func (r *run) records(ctx context.Context) (records, error) {
	got, err := readJournals(r.Folder)
	if err != nil || r.Mode == ReceiveOnly {
		return got, err
	}
	if got.done, err = r.opts.Table.Counts(ctx, r.table()); err != nil {
		err = fmt.Errorf("%w: %w", errTable, err)
	}
	return got, err
}

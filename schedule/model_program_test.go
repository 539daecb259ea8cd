package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/internal/histories"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/resilience"
	"github.com/holdfast-go/holdfast/schedule"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// program is a process of the endpoint.
type program struct {
	h         *history
	machine   *machine // of the database
	broker    *machine
	scheduler *schedule.Scheduler
	endpoint  *endpoint.Endpoint
	cancel    context.CancelFunc
	done      chan error
	ended     atomic.Bool
}

// newProgram starts a process.
func newProgram(h *history, of schedule.Schedule) *program {
	p := &program{h: h, machine: &machine{Transport: h.db}, done: make(chan error, 1)}
	p.broker = p.machine
	var err error
	if p.scheduler, err = schedule.New(schedule.Config{Schedules: []schedule.Schedule{of}}); err != nil {
		h.Fatal(err)
	}
	cfg := endpoint.Config{
		Name: "billing", Install: true, Concurrency: 4, StopTimeout: 5 * time.Second, Logger: slog.New(slog.DiscardHandler),
		Messages: []endpoint.Message{
			endpoint.Command[buildReport]("Shop.BuildReport"), endpoint.Command[sendInvoice]("Shop.SendInvoice"),
			endpoint.Command[chargeOrder]("Shop.ChargeOrder"),
		},
		Handlers: []endpoint.Handler{
			endpoint.Handle(func(ctx context.Context, s *endpoint.Session, _ buildReport) error { return p.work(ctx, s) }),
			endpoint.Handle(func(ctx context.Context, s *endpoint.Session, _ sendInvoice) error { return p.work(ctx, s) }),
			endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m chargeOrder) error {
				_, err := p.scheduler.Enqueue(ctx, s, sendInvoice(m), schedule.Correlation(m.Order))
				return err
			}),
		},
	}
	if histories.IsRepeated() {
		cfg.Logger = harness.Logger(h.T)
	}
	cfg.Recoverability.Immediate, cfg.Recoverability.Delayed = 1, 1
	cfg.Recoverability.Policies = resilience.MustCatalog(resilience.Policy{Name: "invoice-email", Retry: resilience.Retry{
		Max: 2, Delay: 10 * time.Second, Backoff: resilience.Exponential,
	}})
	if h.db == h.broker {
		cfg.Transactions = endpoint.SendsAtomicWithReceive
	} else {
		p.broker = &machine{Transport: h.broker}
		cfg.Outbox = p.machine
	}
	cfg.Transport = p.broker
	cfg.Pipeline.Dispatch.Use("lose", h.book.dispatch)
	p.scheduler.Apply(&cfg)
	if p.endpoint, err = endpoint.New(cfg); err != nil {
		h.Fatal(err)
	}
	ctx, cancel := context.WithCancel(h.Context())
	p.cancel = cancel
	go func() { p.done <- p.endpoint.Run(ctx) }()
	return p
}

// kill ends the process without any further call that has an effect.
func (p *program) kill() {
	if p.ended.Swap(true) {
		return
	}
	p.h.book.bury(p) // the messages return at the cut, and others handle them
	p.broker.cut()
	p.machine.cut()
	p.cancel()
}

// end stops the process and waits for its end.
func (p *program) end() {
	p.cancel()
	if err, ok := <-p.done; ok {
		close(p.done)
		if err != nil && !p.ended.Load() {
			p.h.Errorf("the endpoint ended with %v", err)
		}
	}
	p.ended.Store(true)
}

// work is the handler of jobs.
func (p *program) work(ctx context.Context, s *endpoint.Session) error {
	run, ok := schedule.RunOf(ctx)
	if !ok {
		p.h.book.fault("a message is no job")
		return nil
	}
	if err := inmemory.OnCommit(ctx, s, func() { p.h.book.commit(run.JobID) }); err != nil {
		return err
	}
	defer p.h.book.end(p, run)
	if p.h.book.begin(p, run) {
		return nil
	}
	return p.behave(ctx, run)
}

// behave does what the seed says of an attempt.
func (p *program) behave(ctx context.Context, run schedule.Run) error {
	h := p.h
	sum := fnv.New64a()
	fmt.Fprint(sum, run.Schedule, run.Due.Sub(h.started), run.Correlation, run.Attempt)
	random := rand.New(rand.NewPCG(h.seed, sum.Sum64())) //nolint:gosec // the history is to be repeated
	n := random.IntN(100)
	if n < 55 {
		return nil
	}
	if n < 85 && n%2 == 0 || n >= 92 {
		timer := time.NewTimer(time.Duration(random.Int64N(int64(2 * h.unit))))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	switch {
	case n < 75:
		return nil
	case n < 85 && h.book.isFirstConflict(run):
		return fmt.Errorf("stock: %w", transport.ErrConflict)
	}
	return errors.New("no printer")
}

// book has what the handlers did.
type book struct {
	mu        sync.Mutex
	commits   map[string]int
	begun     map[string][]string      // the ids of the attempts, by job
	open      map[string]openAttempt   // by the id of the attempt
	marks     map[string]map[mark]bool // by job
	conflicts map[string]bool          // attempts that have lost a conflict
	lose      int
	calm      bool
	starts    int
	faults    []string
}

// mark says something about a job.
type mark int

const (
	markNow       mark = iota // started by Inspector.Run
	markLost                  // a message of the job was lost
	markCancelled             // seen Cancelled
)

type openAttempt struct {
	run schedule.Run
	p   *program
}

func (b *book) mark(id string, m mark) {
	if b.marks == nil {
		b.marks = map[string]map[mark]bool{}
	}
	if b.marks[id] == nil {
		b.marks[id] = map[mark]bool{}
	}
	b.marks[id][m] = true
}

func (b *book) has(id string, m mark) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.marks[id][m]
}

func (b *book) cancel(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mark(id, markCancelled)
}

func (b *book) loseNext(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lose = n
}

// settle ends the losses and the failures.
func (b *book) settle() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lose, b.calm = 0, true
}

func (b *book) fault(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults = append(b.faults, fmt.Sprintf(format, args...))
}

// report fails the test with the faults so far.
func (b *book) report(h *history) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, fault := range b.faults {
		h.Error(fault)
	}
	b.faults = nil
}

func (b *book) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.starts
}

func (b *book) commit(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.commits == nil {
		b.commits = map[string]int{}
	}
	b.commits[id]++
}

// begin records the begin of an attempt. It reports whether the attempt succeeds at once.
func (b *book) begin(p *program, run schedule.Run) (calm bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.begun == nil {
		b.begun, b.open = map[string][]string{}, map[string]openAttempt{}
	}
	if p.ended.Load() {
		return true // its connections are closed
	}
	if b.marks[run.JobID][markCancelled] {
		b.faults = append(b.faults, fmt.Sprintf("job %s runs after it was cancelled", run.JobID))
	}
	for _, other := range b.open {
		if other.run.JobID == run.JobID && !p.h.hasCopies.Load() {
			b.faults = append(b.faults, fmt.Sprintf("two attempts of job %s run", run.JobID))
		}
	}
	if !slices.Contains(b.begun[run.JobID], run.RunID) {
		b.begun[run.JobID] = append(b.begun[run.JobID], run.RunID)
	}
	b.open[run.RunID] = openAttempt{run, p}
	if run.Schedule != "" && !b.marks[run.JobID][markNow] {
		b.starts++
	}
	return b.calm
}

func (b *book) end(_ *program, run schedule.Run) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.open, run.RunID)
}

// bury ends the attempts of a process that is gone.
func (b *book) bury(p *program) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, a := range b.open {
		if a.p == p {
			delete(b.open, id)
		}
	}
}

func (b *book) isFirstConflict(run schedule.Run) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conflicts == nil {
		b.conflicts = map[string]bool{}
	}
	key := fmt.Sprint(run.JobID, run.Attempt)
	if b.conflicts[key] {
		return false
	}
	b.conflicts[key] = true
	return true
}

// attempts returns the ids of the attempts at a job that have begun, and the number of commits.
func (b *book) attempts(id string) (begun []string, commits int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.begun[id]), b.commits[id]
}

// dispatch loses messages, and marks the jobs that Inspector.Run has started.
func (b *book) dispatch(next pipeline.Func[*pipeline.Dispatch]) pipeline.Func[*pipeline.Dispatch] {
	return func(ctx context.Context, d *pipeline.Dispatch) error {
		isRun := d.Incoming != nil && strings.HasPrefix(d.Incoming.Headers.Get(header.EnclosedMessageTypes), "Holdfast.Schedule.Run")
		b.mu.Lock()
		d.Operations = slices.DeleteFunc(slices.Clone(d.Operations), func(op transport.Operation) bool {
			if op.Message == nil {
				return false
			}
			id := op.Message.Headers.Get(header.HoldfastJob)
			if isRun && id != "" {
				b.mark(id, markNow)
			}
			if b.lose == 0 {
				return false
			}
			b.lose--
			b.mark(op.Message.ID, markLost)
			return true
		})
		b.mu.Unlock()
		return next(ctx, d)
	}
}

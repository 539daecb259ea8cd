package torture

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-go/holdfast/internal/backoff"
)

// fleet is the worker processes. It starts each again that ends.
type fleet struct {
	command func(context.Context) *exec.Cmd
	log     io.Writer
	slots   []*slot
	planned int // starts that are no restarts
	starts  atomic.Int64
	group   *errgroup.Group
	cancel  context.CancelCauseFunc
	failed  <-chan struct{} // closed when a worker cannot run, or the fleet was stopped
}

// slot is one worker: the processes that take its place one after the other.
type slot struct {
	fleet      *fleet
	assignment assignment
	ready      chan struct{} // closed when a process has been ready for the first time
	once       sync.Once

	mu      sync.Mutex
	process *exec.Cmd // nil unless one is at work
}

var (
	// errDrain is the cause that lets the workers finish what they handle; any other kills them.
	errDrain = errors.New("the workers are to finish")
	// errFleet stands for what stop returns.
	errFleet = errors.New("a worker cannot run")
)

func newFleet(r *run) *fleet {
	f := &fleet{command: r.opts.Worker, log: r.opts.WorkerLog}
	for i := range r.Workers {
		a := r.assignment
		a.Worker = i
		f.slots = append(f.slots, &slot{fleet: f, assignment: a, ready: make(chan struct{})})
	}
	return f
}

// launch starts the workers. They are killed when ctx ends.
func (f *fleet) launch(ctx context.Context) {
	ctx, f.cancel = context.WithCancelCause(ctx)
	f.group, ctx = errgroup.WithContext(ctx)
	f.failed = ctx.Done()
	f.planned += len(f.slots)
	for _, s := range f.slots {
		f.group.Go(func() error { return s.keepRunning(ctx) })
	}
}

// stop lets the workers finish where the cause is errDrain, else kills them, and waits for
// them. It returns why one could not run.
func (f *fleet) stop(cause error) error {
	f.cancel(cause)
	return f.group.Wait()
}

// restarts is how often a worker was started again.
func (f *fleet) restarts() int { return max(0, int(f.starts.Load())-f.planned) }

// kill ends the process of a worker as a crash does, if it is at work. One that is only starting is
// spared: on a slow machine nothing would ever get done.
func (f *fleet) kill(worker int) bool {
	s := f.slots[worker]
	s.mu.Lock()
	defer s.mu.Unlock()
	hit := s.process != nil && s.process.Process.Kill() == nil
	s.process = nil
	return hit
}

const (
	// exitOwn is the exit code by which a worker says that it cannot go on, and why on its standard
	// error. Deaths have others.
	exitOwn = 1
	// patience is how often in a row a worker may do so before it is not started again: less at the
	// start than later, when the broker may be away for a while.
	patience, longPatience = 4, 20
)

func (s *slot) keepRunning(ctx context.Context) error {
	pause := backoff.Backoff{Min: 100 * time.Millisecond, Max: 2 * time.Second}
	for refused := 0; ; {
		err := s.live(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if own, ok := errors.AsType[*refusal](err); ok && !own.wasReady {
			refused++
		} else {
			refused = 0
			pause.Reset()
		}
		if refused == s.patience() {
			return fmt.Errorf("worker %d cannot run: %w", s.assignment.Worker, err)
		}
		if pause.Wait(ctx) != nil {
			return nil
		}
	}
}

func (s *slot) patience() int {
	select {
	case <-s.ready:
		return longPatience
	default:
		return patience
	}
}

// refusal is a worker that ended by its own will.
type refusal struct {
	text     string
	wasReady bool
}

func (r *refusal) Error() string { return r.text }

// live starts a process and waits for its end.
func (s *slot) live(ctx context.Context) error {
	cmd := s.fleet.command(ctx)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return &refusal{text: err.Error()}
	}
	errs, isReady := &tail{also: s.fleet.log}, &readiness{slot: s, cmd: cmd}
	cmd.Stdout, cmd.Stderr = isReady, errs
	cmd.WaitDelay = stopTimeout(s.assignment.Load) + 5*time.Second // then it is killed
	cmd.Cancel = func() error {
		if errors.Is(context.Cause(ctx), errDrain) {
			return stdin.Close()
		}
		return cmd.Process.Kill()
	}
	if err := cmd.Start(); err != nil {
		return &refusal{text: err.Error()}
	}
	s.fleet.starts.Add(1)
	defer s.set(nil)
	_ = json.NewEncoder(stdin).Encode(s.assignment) // fails when the process is gone, which Wait tells
	err = cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() != exitOwn {
		return err
	}
	return &refusal{text: strings.TrimSpace(errs.String()), wasReady: isReady.said}
}

func (s *slot) set(cmd *exec.Cmd) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.process = cmd
}

// readiness hears a worker say that it is ready.
type readiness struct {
	slot *slot
	cmd  *exec.Cmd
	said bool // may be read when the process has ended
}

func (r *readiness) Write(p []byte) (int, error) {
	r.said = true // a worker says nothing else
	r.slot.set(r.cmd)
	r.slot.once.Do(func() { close(r.slot.ready) })
	return len(p), nil
}

// tail keeps the end of what a process wrote.
type tail struct {
	also io.Writer
	kept []byte
}

func (t *tail) Write(p []byte) (int, error) {
	const most = 4 << 10
	t.kept = append(t.kept, p...)
	t.kept = t.kept[max(0, len(t.kept)-most):]
	return t.also.Write(p)
}

func (t *tail) String() string { return string(t.kept) }

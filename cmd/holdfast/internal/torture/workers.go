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

// workers are the worker processes. Each that ends is started again.
type workers struct {
	command func(context.Context) *exec.Cmd
	log     io.Writer
	slots   []*slot
	planned int // starts that are no restarts
	starts  atomic.Int64
	group   *errgroup.Group
	cancel  context.CancelCauseFunc
	failed  <-chan struct{} // closed when a worker cannot run, or all were stopped
}

// slot is one worker: a sequence of processes.
type slot struct {
	workers    *workers
	assignment assignment
	ready      chan struct{} // closed when a process has been ready for the first time
	once       sync.Once

	mu      sync.Mutex
	process *exec.Cmd // nil unless one is at work
}

var (
	// errDrain is the cause that stops the workers after their messages; any other kills them.
	errDrain = errors.New("the workers are to finish")
	// errWorkers stands for the error that stop returns.
	errWorkers = errors.New("a worker cannot run")
)

func newWorkers(r *run) *workers {
	f := &workers{command: r.opts.Worker, log: r.opts.WorkerLog}
	for i := range r.Workers {
		a := r.assignment
		a.Worker = i
		f.slots = append(f.slots, &slot{workers: f, assignment: a, ready: make(chan struct{})})
	}
	return f
}

// launch starts the workers. They are killed when ctx ends.
func (f *workers) launch(ctx context.Context) {
	ctx, f.cancel = context.WithCancelCause(ctx)
	f.group, ctx = errgroup.WithContext(ctx)
	f.failed = ctx.Done()
	f.planned += len(f.slots)
	for _, s := range f.slots {
		f.group.Go(func() error { return s.keepRunning(ctx) })
	}
}

// stop stops the workers, after their messages when the cause is errDrain, and waits for them. It
// returns the error of one that could not run.
func (f *workers) stop(cause error) error {
	f.cancel(cause)
	return f.group.Wait()
}

// restarts returns the number of restarts.
func (f *workers) restarts() int { return max(0, int(f.starts.Load())-f.planned) }

// kill kills the process of a worker and reports whether it was ready. One that is starting is not
// killed: on a slow machine no message would ever be processed.
func (f *workers) kill(worker int) bool {
	s := f.slots[worker]
	s.mu.Lock()
	defer s.mu.Unlock()
	hit := s.process != nil && s.process.Process.Kill() == nil
	s.process = nil
	return hit
}

const (
	// exitOwn is the exit code of a worker that cannot go on; the reason is on its standard error.
	// Deaths have others.
	exitOwn = 1
	// maxRefusals is how often in a row a worker may exit so before the run ends. Once it was ready
	// the bound is higher, as the broker may be unavailable for a while.
	maxRefusals, maxRefusalsLater = 4, 20
)

func (s *slot) keepRunning(ctx context.Context) error {
	pause := backoff.Backoff{Min: 100 * time.Millisecond, Max: 2 * time.Second}
	for refused := 0; ; {
		err := s.live(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			refused++
		} else {
			refused = 0
			pause.Reset()
		}
		most := maxRefusals
		select {
		case <-s.ready:
			most = maxRefusalsLater
		default:
		}
		if refused == most {
			return fmt.Errorf("worker %d cannot run: %w", s.assignment.Worker, err)
		}
		if pause.Wait(ctx) != nil {
			return nil
		}
	}
}

// live starts a process and waits for its end. It returns the error of one that refused: it exited
// with exitOwn before it was ready.
func (s *slot) live(ctx context.Context) error {
	cmd := s.workers.command(ctx)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	errs, isReady := &tail{also: s.workers.log}, &readiness{slot: s, cmd: cmd}
	cmd.Stdout, cmd.Stderr = isReady, errs
	cmd.WaitDelay = stopTimeout(s.assignment.Load) + 5*time.Second // then it is killed
	cmd.Cancel = func() error {
		if errors.Is(context.Cause(ctx), errDrain) {
			return stdin.Close()
		}
		return cmd.Process.Kill()
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	s.workers.starts.Add(1)
	defer s.set(nil)
	_ = json.NewEncoder(stdin).Encode(s.assignment) // fails when the process is gone, and then Wait fails too
	err = cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); isReady.said || ok && exit.ExitCode() != exitOwn {
		return nil
	}
	return errors.New(strings.TrimSpace(errs.String()))
}

func (s *slot) set(cmd *exec.Cmd) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.process = cmd
}

// readiness is the standard output of a worker, which writes one line when it is ready.
type readiness struct {
	slot *slot
	cmd  *exec.Cmd
	said bool // may be read when the process has ended
}

func (r *readiness) Write(p []byte) (int, error) {
	r.said = true // a worker writes nothing else
	r.slot.set(r.cmd)
	r.slot.once.Do(func() { close(r.slot.ready) })
	return len(p), nil
}

// tail keeps the end of the output of a process.
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

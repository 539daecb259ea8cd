package torture

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

var errTimeout = errors.New("the time is up")

// siege has the workers handle all messages while it kills them, until the queues are empty and
// are so still when nobody works on them any more. It returns how many messages are left when
// the time was up.
func (r *run) siege(ctx context.Context) (left int64, err error) {
	limited, cancel := context.WithTimeoutCause(ctx, r.opts.Timeout, errTimeout)
	defer cancel()
	r.fleet = newFleet(r)
	r.fleet.launch(ctx)
	if err := r.begin(limited); err != nil {
		return 0, r.giveUp(err)
	}
	w := newWatch(r)
	defer w.close()
	for {
		err := w.untilQuiet(limited)
		if err != nil && !errors.Is(err, errTimeout) {
			return 0, r.giveUp(err)
		}
		// What was in a handler's hands, and the broker does not count, shows now.
		if err := r.fleet.stop(errDrain); err != nil {
			return 0, err
		}
		left, _, failed := r.inspect(ctx)
		if failed != nil || left == 0 || err != nil {
			return left, failed
		}
		r.fleet.launch(ctx)
	}
}

// giveUp kills the workers. It returns their error where they are the reason.
func (r *run) giveUp(err error) error {
	if refused := r.fleet.stop(err); refused != nil {
		return refused
	}
	return err
}

// begin sends when all workers are ready.
func (r *run) begin(ctx context.Context) error {
	if err := r.awaitReady(ctx); err != nil {
		return fmt.Errorf("wait for the workers: %w", err)
	}
	if err := r.send(ctx); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	return nil
}

func (r *run) awaitReady(ctx context.Context) error {
	for _, s := range r.fleet.slots {
		select {
		case <-s.ready:
		case <-r.fleet.failed:
			return cmp.Or(context.Cause(ctx), errFleet) // whose end is the fleet's too
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// send sends the messages, numbered from 1.
func (r *run) send(ctx context.Context) error {
	const batch = 100
	var ops []transport.Operation
	for n := 1; n <= r.Messages; n++ {
		ops = append(ops, r.job(n))
		if len(ops) < batch && n < r.Messages {
			continue
		}
		if _, err := r.conn.Dispatch(ctx, ops); err != nil {
			return err
		}
		ops = nil
	}
	return nil
}

func (r *run) job(n int) transport.Operation {
	m := &transport.Message{ID: r.id(n), Body: fmt.Appendf(nil, `{"N":%d}`, n)}
	m.Headers = header.New(
		header.Field{Name: header.MessageID, Value: m.ID},
		header.Field{Name: header.EnclosedMessageTypes, Value: jobType},
	)
	return transport.Operation{Message: m, Queue: r.Name}
}

// watch looks at the queues and carries out the kills.
type watch struct {
	*run
	look  *time.Ticker
	kill  *time.Timer
	kills *kills
	next  Kill
	began time.Time
	told  time.Time // of the progress
	empty time.Time // since when the queues are; zero while they are not
}

func newWatch(r *run) *watch {
	const often = 200 * time.Millisecond
	w := &watch{run: r, look: time.NewTicker(often), kill: time.NewTimer(time.Hour), kills: r.plan.kills(), began: time.Now()}
	if r.KillEvery > 0 {
		w.schedule()
	} else {
		w.kill.Stop()
	}
	return w
}

func (w *watch) close() {
	w.look.Stop()
	w.kill.Stop()
}

// schedule sets the timer to the next kill of the plan.
func (w *watch) schedule() {
	w.next = w.kills.next()
	w.kill.Reset(time.Until(w.began.Add(w.next.At)))
}

// untilQuiet returns nil when the queues have been empty for a while.
func (w *watch) untilQuiet(ctx context.Context) error {
	w.empty = time.Time{}
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-w.fleet.failed:
			return cmp.Or(context.Cause(ctx), errFleet)
		case <-w.kill.C:
			if w.fleet.kill(w.next.Worker) {
				w.killed = append(w.killed, w.next)
			}
			w.schedule()
		case <-w.look.C:
			if quiet, err := w.lookAround(ctx); err != nil || quiet {
				return err
			}
		}
	}
}

// lookAround tells whether the queues have been empty long enough. That the broker cannot be
// asked at the moment is no error: the time limit bounds it.
func (w *watch) lookAround(ctx context.Context) (quiet bool, err error) {
	records, err := w.ledger.read(ctx)
	if err != nil {
		return false, cmp.Or(context.Cause(ctx), err)
	}
	left, after, err := w.inspect(ctx)
	w.tell(records, left, err)
	if len(records.done) >= w.Messages-w.Poison {
		w.kill.Stop() // only poison is left, and needs no help
	}
	switch {
	case left > 0 || err != nil:
		w.empty = time.Time{}
	case w.empty.IsZero():
		w.empty = time.Now()
	default:
		return time.Since(w.empty) >= after, nil
	}
	return false, nil
}

// tell shows the progress every two seconds.
func (w *watch) tell(got records, left int64, err error) {
	const often = 2 * time.Second
	if time.Since(w.told) < often {
		return
	}
	w.told = time.Now()
	if err != nil {
		w.progress("the queues cannot be looked at: %v", err)
		return
	}
	w.progress("processed %d of %d, %d in the queues, %d kills, %d restarts", len(got.done), w.Messages-w.Poison, left, len(w.killed), w.fleet.restarts())
}

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

// work sends the messages and kills workers while they process them, until the queues are empty and
// stay so after the workers have stopped. It returns the number of messages in the queues when the
// time was up.
func (r *run) work(ctx context.Context) (left int64, err error) {
	limited, cancel := context.WithTimeoutCause(ctx, r.opts.Timeout, errTimeout)
	defer cancel()
	r.workers = newWorkers(r)
	r.workers.launch(ctx)
	if err := r.awaitReady(limited); err != nil {
		return 0, r.giveUp(fmt.Errorf("wait for the workers: %w", err))
	}
	if err := r.send(limited); err != nil {
		return 0, r.giveUp(fmt.Errorf("send: %w", err))
	}
	w := &watch{run: r, look: time.NewTicker(200 * time.Millisecond), kills: r.plan.kills(), began: time.Now()}
	w.schedule()
	for {
		err := w.untilQuiet(limited)
		if err != nil && !errors.Is(err, errTimeout) {
			return 0, r.giveUp(err)
		}
		// Messages that were being handled, which some brokers do not count, are counted now.
		if err := r.workers.stop(errDrain); err != nil {
			return 0, err
		}
		left, _, failed := r.inspect(ctx)
		if failed != nil || left == 0 || err != nil {
			return left, failed
		}
		r.workers.launch(ctx)
	}
}

// giveUp kills the workers. It returns their error where that is the cause.
func (r *run) giveUp(err error) error { return cmp.Or(r.workers.stop(err), err) }

func (r *run) awaitReady(ctx context.Context) error {
	for _, s := range r.workers.slots {
		select {
		case <-s.ready:
		case <-r.workers.failed:
			return cmp.Or(context.Cause(ctx), errWorkers) // the end of ctx ends the workers too
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
		m := &transport.Message{ID: r.id(n), Body: fmt.Appendf(nil, `{"N":%d}`, n)}
		m.Headers = header.New(
			header.Field{Name: header.MessageID, Value: m.ID},
			header.Field{Name: header.EnclosedMessageTypes, Value: jobType},
		)
		ops = append(ops, transport.Operation{Message: m, Queue: r.Name})
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

// watch inspects the queues and carries out the kills.
type watch struct {
	*run
	look  *time.Ticker
	kill  <-chan time.Time // nil when a kill is due, and when there are no more kills
	kills *kills
	next  *Kill // nil when there are no more kills
	spare int   // how many messages are processed before the next kill
	began time.Time
	shown time.Time // the progress
	empty time.Time // since when the queues are; zero while they are not
}

// schedule sets the timer to the next kill of the plan.
func (w *watch) schedule() {
	w.kill, w.next = nil, nil
	if w.KillEvery > 0 && (w.MaxKills == 0 || len(w.killed) < w.MaxKills) {
		next := w.kills.next()
		w.kill, w.next = time.After(time.Until(w.began.Add(next.At))), &next
	}
}

// rounds is how many messages each handler processes between two kills, on average. Without this
// bound, kills on a slow machine would come faster than messages are processed, and move innocent
// messages to the error queue.
const rounds = 4

// isDue reports whether the time of the next kill has come and enough messages are processed since
// the kill before.
func (w *watch) isDue(processed int) bool {
	return w.next != nil && w.kill == nil && processed >= w.spare
}

// killIfDue carries out the next kill if the kill is due.
func (w *watch) killIfDue(processed int) {
	if !w.isDue(processed) {
		return
	}
	if w.workers.kill(w.next.Worker) {
		w.killed = append(w.killed, *w.next)
		w.spare = processed + rounds*w.Workers*w.Concurrency
	}
	w.schedule()
}

// untilQuiet returns nil when the queues have been empty for a while.
func (w *watch) untilQuiet(ctx context.Context) error {
	w.empty = time.Time{}
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-w.workers.failed:
			return cmp.Or(context.Cause(ctx), errWorkers)
		case <-w.kill:
			w.kill = nil // the next look finds the kill due
		case <-w.look.C:
			if quiet, err := w.inspectQueues(ctx); err != nil || quiet {
				return err
			}
		}
	}
}

// inspectQueues reports whether the queues have been empty long enough. A broker that does not
// answer is no error: the timeout of the run bounds it.
func (w *watch) inspectQueues(ctx context.Context) (quiet bool, err error) {
	records, err := w.records(ctx)
	if err != nil && !errors.Is(err, errTable) {
		return false, cmp.Or(context.Cause(ctx), err)
	}
	left, after := int64(0), time.Duration(0)
	if err == nil {
		left, after, err = w.inspect(ctx)
	}
	w.showProgress(records, left, err)
	if len(records.done) >= w.Messages-w.Poison {
		w.next = nil // the rest is poison
	}
	w.killIfDue(len(records.done))
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

// showProgress shows the progress every two seconds.
func (w *watch) showProgress(got records, left int64, err error) {
	if time.Since(w.shown) < 2*time.Second {
		return
	}
	w.shown = time.Now()
	if err != nil {
		w.progress("the queues cannot be inspected: %v", err)
		return
	}
	w.progress("processed %d of %d, %d in the queues, %d kills, %d restarts",
		len(got.done), w.Messages-w.Poison, left, len(w.killed), w.workers.restarts())
}

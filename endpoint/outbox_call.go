package endpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/destination"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/transport"
)

// relayCall is operations that are sent in one call of the driver.
type relayCall struct {
	ops    []transport.Operation
	owners []owner
	trial  string // the one destination of a call that decides about its state; else ""

	performed bool
	err       error
	expired   bool // the driver gave no answer in time
}

// errNoAnswer is the cause with which the context of a call ends.
var errNoAnswer = fmt.Errorf("no answer within %v", destination.AnswerWithin)

// destinationOf returns the name of an operation's destination: of its queue, or of the events that
// it publishes.
func destinationOf(op *transport.Operation) string {
	if op.Queue != "" {
		return op.Queue
	}
	if len(op.Types) > 0 {
		return "events of type " + op.Types[0]
	}
	return ""
}

func (c *relayCall) destinations() []string {
	var all []string
	for i := range c.ops {
		if to := destinationOf(&c.ops[i]); !slices.Contains(all, to) {
			all = append(all, to)
		}
	}
	return all
}

// calls divides operations into calls, and returns those that wait for their destinations.
func (b *relayBatch) calls(ops []transport.Operation, owners []owner) (calls []*relayCall, waiting relayCall) {
	book := b.relay.book()
	if book.Calm() {
		return []*relayCall{{ops: ops, owners: owners}}, waiting
	}
	type way struct {
		destination.Way
		call *relayCall
	}
	ways, together := map[string]*way{}, new(relayCall)
	for i := range ops {
		to := destinationOf(&ops[i])
		w := ways[to]
		if w == nil {
			w = &way{Way: book.Admit(to), call: together}
			if ways[to] = w; w.Way == destination.Alone || w.Way == destination.Probe {
				w.call = &relayCall{trial: to}
				calls = append(calls, w.call)
			}
		}
		c := w.call
		owners[i].waits = forBroker
		if w.Way == destination.Wait {
			c = &waiting
			owners[i].waits = forDestination
		}
		c.ops, c.owners = append(c.ops, ops[i]), append(c.owners, owners[i])
		if w.Way == destination.Probe {
			w.Way = destination.Wait
		}
	}
	if len(together.ops) > 0 {
		calls = append(calls, together)
	}
	return calls, waiting
}

// perform sends the operations of a call. It ends the call if there is no answer in time, while the
// broker is there. yield is called when the call takes long.
func (r *relay) perform(ctx context.Context, c *relayCall, yield func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		mu      sync.Mutex // guards the rest
		over    bool
		expired bool
		passed  time.Duration // since the broker was away last
		slow    []string
		timer   *time.Timer
	)
	mu.Lock()
	timer = time.AfterFunc(destination.SlowAfter, func() {
		mu.Lock()
		defer mu.Unlock()
		if over {
			return
		}
		if passed += destination.SlowAfter; r.away() {
			passed = 0
		}
		if passed == destination.SlowAfter && slow == nil {
			slow = c.destinations()
			r.book().Slow(slow)
			yield()
		}
		if passed >= destination.AnswerWithin {
			expired = true
			cancel(errNoAnswer)
			return
		}
		timer.Reset(destination.SlowAfter)
	})
	mu.Unlock()
	c.err, c.performed = r.dispatch(ctx, c.ops), true
	mu.Lock()
	defer mu.Unlock()
	over, c.expired = true, expired
	timer.Stop()
	if slow != nil {
		r.book().Fast(slow)
	}
}

// sendAlone sends one operation, unless its destination takes none at the moment.
func (r *relay) sendAlone(ctx context.Context, op transport.Operation, yield func()) error {
	c, to := &relayCall{ops: []transport.Operation{op}}, destinationOf(&op)
	switch r.book().Admit(to) {
	case destination.Wait:
		return errWaits
	case destination.Alone, destination.Probe:
		c.trial = to
	case destination.Together:
	}
	r.perform(ctx, c, yield)
	r.judge(ctx, c, failures(c.err, 1))
	return c.err
}

// errWaits is the error of an operation that was not sent, because its destination does not answer.
var errWaits = fmt.Errorf("%w: its state is in the health of the outbox", transport.ErrUnreachable)

// away reports whether the driver says that the broker accepts nothing at the moment, or that there
// is no connection.
func (r *relay) away() bool {
	conn := r.live.conn
	if b, ok := conn.(transport.Blocker); ok && b.Blocked() {
		return true
	}
	c, ok := conn.(transport.ConnectionReporter)
	return ok && !c.Connected()
}

// judge records the outcomes of a call for its destinations.
func (r *relay) judge(ctx context.Context, c *relayCall, failed map[int]error) {
	_, answered := errors.AsType[*transport.DispatchError](c.err)
	answered = answered || c.err == nil
	if c.err == nil && r.book().Calm() {
		r.book().AllAnswered()
		return
	}
	worst := map[string]destination.Kind{}
	errs := map[string]error{}
	for i := range c.ops {
		err := failed[i]
		kind, known := r.kindOf(ctx, c, err)
		if kind == destination.Well && r.mayBeFull(&c.ops[i], err) {
			kind = destination.Full
		}
		if !known || kind == destination.Well && !answered {
			continue
		}
		to := destinationOf(&c.ops[i])
		if before, seen := worst[to]; !seen || kind > before {
			worst[to], errs[to] = kind, err
		}
	}
	for to, kind := range worst {
		if kind == destination.Well {
			r.answered(ctx, to)
			continue
		}
		err := errs[to]
		if kind == destination.Silent {
			err = errNoAnswer
		}
		if _, begins := r.book().Failed(to, kind, err); begins {
			r.live.e.cfg.Logger.WarnContext(ctx, "a destination of the outbox accepts no messages: they wait, and others are sent",
				slog.String("queue", to), slog.String("problem", kind.String()), slog.Any("error", err))
		}
	}
	if c.trial != "" {
		r.book().End(c.trial)
	}
}

// kindOf returns what the error of an operation says of its destination, and reports whether it
// says anything.
func (r *relay) kindOf(ctx context.Context, c *relayCall, err error) (kind destination.Kind, known bool) {
	_, busy := errors.AsType[*transport.BusyError](err)
	switch {
	case busy:
		return destination.Busy, true
	case !copies.Unanswered(err):
		return destination.Well, true
	case c.expired && (!errors.Is(err, transport.ErrUnreachable) || errors.Is(err, transport.ErrOutcomeUnknown)):
		return destination.Silent, true
	case r.outbox.own, ctx.Err() != nil, errors.Is(err, transport.ErrClosed), r.away():
		return destination.Well, false
	}
	return destination.Unreachable, true
}

func (r *relay) answered(ctx context.Context, to string) {
	was := r.book().Answered(to)
	if was.Kind == destination.Well {
		return
	}
	r.live.e.cfg.Logger.InfoContext(ctx, "a destination of the outbox answers again: its messages are sent",
		slog.String("queue", to), slog.Duration("after", time.Since(was.Since)), slog.Int64("rows", was.Rows))
}

func (r *relay) book() *destination.Book { return &r.outbox.book }

// callEvery is the time between two portions of rows that are called back.
const callEvery = 250 * time.Millisecond

// callBack has rows that wait for destinations received before they are due, until ctx ends.
func (r *relay) callBack(ctx context.Context) {
	changed := r.book().Changed()
	for {
		handles, forgotten, left := r.book().Call()
		for _, s := range forgotten {
			r.live.e.cfg.Logger.InfoContext(ctx, "no message of the outbox waits for a destination any more: whether it accepts messages is unknown",
				slog.String("queue", s.Destination), slog.Duration("after", time.Since(s.Since)))
		}
		if r.hasten(ctx, handles); left {
			if backoff.Sleep(ctx, callEvery) != nil {
				return
			}
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// hasten has rows received now.
func (r *relay) hasten(ctx context.Context, handles []string) {
	hastener, ok := r.outbox.conn.(transport.Hastener)
	if !ok || len(handles) == 0 {
		return
	}
	within, cancel := context.WithTimeout(ctx, backlogEvery)
	defer cancel()
	if err := hastener.Hasten(within, r.outbox.queue, handles); err != nil && ctx.Err() == nil {
		r.live.e.cfg.Logger.WarnContext(ctx, "messages of the outbox whose destination answers again are sent later, when they are due",
			slog.Int("rows", len(handles)), slog.Any("error", err))
	}
}

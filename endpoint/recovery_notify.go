package endpoint

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/failurelog"
	"github.com/holdfast-go/holdfast/endpoint/internal/overdue"
	"github.com/holdfast-go/holdfast/endpoint/internal/panics"
	"github.com/holdfast-go/holdfast/internal/goroutines"
	"github.com/holdfast-go/holdfast/recoverability"
)

const (
	notifyTimeout = 10 * time.Second
	maxUnreturned = 100 // calls of Notify functions that were given up
)

// notify calls the functions of Config.Notify. It returns when they have, or their time is over.
func (l *live) notify(ctx context.Context, n recoverability.Notification) {
	if len(l.e.cfg.Notify) == 0 {
		return
	}
	if l.e.unreturned.Add(1) > maxUnreturned {
		l.e.unreturned.Add(-1)
		l.e.cfg.Logger.ErrorContext(ctx, "functions of Config.Notify do not return: a notification is dropped",
			slog.String("kind", string(n.Kind)))
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), notifyTimeout)
	defer cancel()
	call, done := l.beginNotify(n), make(chan struct{})
	go func() {
		defer l.e.unreturned.Add(-1)
		defer close(done)
		defer l.calls.End(call)
		l.calls.RunBy(call, goroutines.ID())
		for i, f := range l.e.cfg.Notify {
			call.EnterFunction(&l.e.notifyNames[i])
			l.notifyOne(ctx, f, n)
		}
	}()
	select {
	case <-done:
	case <-ctx.Done():
		l.calls.Leave(call)
		l.e.cfg.Logger.WarnContext(ctx, "a function of Config.Notify has not returned: continuing without it",
			slog.String("kind", string(n.Kind)))
	}
}

// beginNotify has the watch count the call of the functions for a notification.
func (l *live) beginNotify(n recoverability.Notification) *overdue.Call {
	call, queue, message := new(overdue.Call), "", ""
	if n.Failure != nil {
		queue, message = n.Failure.Queue, n.Failure.MessageID
	}
	call.EnterFunction(&l.e.notifyNames[0])
	l.calls.Begin(call, queue, message, 0)
	return call
}

// notifyOne calls one function, which may panic.
func (l *live) notifyOne(ctx context.Context, f func(context.Context, recoverability.Notification), n recoverability.Notification) {
	defer func() {
		if v := recover(); v != nil {
			l.e.cfg.Logger.ErrorContext(ctx, "a function of Config.Notify panicked",
				slog.String("kind", string(n.Kind)), slog.String("panic", panics.Text(v)))
		}
	}()
	f(ctx, n)
}

// tookFallback records a fallback, to be reported once the message is settled.
func (r *recovery) tookFallback(f recoverability.Fallback, instead recoverability.Action) {
	r.fallbacks = append(r.fallbacks, recoverability.Notification{Kind: recoverability.FallbackTaken, Fallback: f, Action: instead})
}

// notifyAction reports an action that was carried out, and the fallbacks that led to it.
func (r *recovery) notifyAction(ctx context.Context, action recoverability.Action, f recoverability.Failure) {
	for _, n := range r.fallbacks {
		n.Failure = &f
		r.live.notify(ctx, n)
	}
	n := recoverability.Notification{Failure: &f, Action: action}
	switch a := action.(type) {
	case recoverability.Retry:
		n.Kind, n.Retry = recoverability.ImmediateRetry, f.Immediate
	case recoverability.RetryInline:
		n.Kind, n.Retry = recoverability.InlineRetry, f.Inline+1
	case recoverability.Delay:
		n.Kind, n.Retry, n.To = recoverability.DelayedRetry, f.Delayed+1, r.Queue
	case recoverability.MoveToError:
		n.Kind, n.To = recoverability.MovedToError, a.Queue
	case recoverability.DeadLetter:
		n.Kind = recoverability.DeadLettered
	case recoverability.Discard:
		n.Kind = recoverability.Discarded
	}
	r.live.notify(ctx, n)
}

// critical reports a condition that the endpoint cannot mend by itself.
func (l *live) critical(ctx context.Context, f recoverability.Failure) {
	l.notify(ctx, recoverability.Notification{Kind: recoverability.CriticalError, Failure: &f})
}

// notificationOrder keeps the notifications of one message in order.
type notificationOrder struct {
	waiting atomic.Int32
	mu      sync.Mutex // guards the rest
	last    map[failurelog.Key]*place
}

// place is an attempt's place in the order of its message's notifications.
type place struct {
	order  *notificationOrder
	key    failurelog.Key
	before <-chan struct{} // closed when the place before has ended; nil for the first
	over   chan struct{}
}

// nextPlace is called before the message is settled: afterwards the next attempt may take its place
// first. Each place must be ended.
func (in *incoming) nextPlace() *place { return in.e.notifications.next(in.FailureKey()) }

// next returns the next place for key.
func (o *notificationOrder) next(key failurelog.Key) *place {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := &place{order: o, key: key, over: make(chan struct{})}
	if last := o.last[key]; last != nil {
		p.before = last.over
	}
	if o.last == nil {
		o.last = map[failurelog.Key]*place{}
	}
	o.last[key] = p
	return p
}

// wait waits for the places before, for a limited time and in a limited number of attempts: a
// function that hangs must not stop all attempts for the sake of order.
func (p *place) wait() {
	if p.before == nil {
		return
	}
	defer p.order.waiting.Add(-1)
	if p.order.waiting.Add(1) > maxUnreturned {
		return
	}
	timeout := time.NewTimer(notifyTimeout)
	defer timeout.Stop()
	select {
	case <-p.before:
	case <-timeout.C:
	}
}

// maxUnreported is how many notifications are delivered while their messages are settled already.
// Above that, a message waits for its own, so that functions which cannot keep up slow the endpoint
// down and miss nothing.
const maxUnreported = 50

// report calls f in its place, and ends the place. A settled message no longer counts meanwhile, so
// that a slow function delays no other, unless the message is handled exclusively or too much is
// unreported.
func (in *incoming) report(p *place, f func()) {
	defer p.end()
	in.giveUpKeys()
	if len(in.e.cfg.Notify) == 0 {
		return
	}
	if in.exclusive == nil {
		defer in.live.unreported.Add(-1)
		if in.live.unreported.Add(1) <= maxUnreported && in.Over() {
			in.Slot.Settled()
		}
	}
	p.wait()
	f()
}

func (p *place) end() {
	p.order.mu.Lock()
	defer p.order.mu.Unlock()
	close(p.over)
	if p.order.last[p.key] == p {
		delete(p.order.last, p.key)
	}
}

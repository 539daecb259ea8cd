// Package notify calls the functions of Config.Notify, and keeps the notifications of each message
// in order.
package notify

import (
	"context"
	"fmt"
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

// maxUnreported is how many notifications are delivered while their messages are settled already.
// Above that number a message waits for its own notification: functions that are slow then slow the
// endpoint down, and miss nothing.
const maxUnreported = 50

// Notifier calls the functions of an endpoint. A Notifier is safe for concurrent use.
type Notifier struct {
	functions []func(context.Context, recoverability.Notification)
	names     []string // of the functions
	log       *slog.Logger
	calls     *overdue.Watch

	order      order
	running    atomic.Int32 // calls of the functions, the calls that were given up included
	unreported atomic.Int32 // notifications of messages that have not returned
}

// New returns the notifier of functions, whose calls are counted by calls.
func New(
	functions []func(context.Context, recoverability.Notification), log *slog.Logger, calls *overdue.Watch,
) *Notifier {
	n := &Notifier{functions: functions, log: log, calls: calls}
	for i := range functions {
		n.names = append(n.names, fmt.Sprintf("function %d of Config.Notify", i+1))
	}
	return n
}

// Notify calls the functions, and returns when all have returned, or after [Timeout].
func (n *Notifier) Notify(ctx context.Context, note recoverability.Notification) {
	if len(n.functions) == 0 {
		return
	}
	if n.running.Add(1) > maxUnreturned {
		n.running.Add(-1)
		n.log.ErrorContext(ctx, "functions of Config.Notify do not return: a notification is dropped",
			slog.String("kind", string(note.Kind)))
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), Timeout)
	defer cancel()
	call, done := new(overdue.Call), make(chan struct{})
	go func() {
		defer n.running.Add(-1)
		defer close(done)
		n.begin(call, note)
		defer n.calls.End(call)
		for i, f := range n.functions {
			call.EnterFunction(&n.names[i])
			n.call(ctx, f, note)
		}
	}()
	select {
	case <-done:
	case <-ctx.Done():
		n.calls.Leave(call)
		n.log.WarnContext(ctx, "a function of Config.Notify has not returned: continuing without it",
			slog.String("kind", string(note.Kind)))
	}
}

// begin has the watch count the call of the functions for a notification.
func (n *Notifier) begin(call *overdue.Call, note recoverability.Notification) {
	queue, message := "", ""
	if note.Failure != nil {
		queue, message = note.Failure.Queue, note.Failure.MessageID
	}
	call.EnterFunction(&n.names[0])
	n.calls.Begin(call, queue, message, goroutines.ID())
}

// call calls one function, which may panic.
func (n *Notifier) call(
	ctx context.Context, f func(context.Context, recoverability.Notification),
	note recoverability.Notification,
) {
	defer func() {
		if v := recover(); v != nil {
			n.log.ErrorContext(ctx, "a function of Config.Notify panicked",
				slog.String("kind", string(note.Kind)), slog.String("panic", panics.Text(v)))
		}
	}()
	f(ctx, note)
}

// Critical reports a condition that the endpoint cannot mend by itself.
func (n *Notifier) Critical(ctx context.Context, f recoverability.Failure) {
	n.Notify(ctx, recoverability.Notification{Kind: recoverability.CriticalError, Failure: &f})
}

// Outage reports that receives from a queue have been failing for long, because of err, unless err
// is nil.
func (n *Notifier) Outage(ctx context.Context, queue string, err error) {
	if err != nil {
		n.Critical(ctx, recoverability.Failure{Queue: queue, Now: time.Now(), Err: err})
	}
}

// Next returns the next place in the order of the notifications of a message. Next is called before
// the message is settled: afterwards the next attempt may take its place first. Each place must be
// ended, by End or Report.
func (n *Notifier) Next(key failurelog.Key) *Place { return n.order.next(key) }

// Reporter is a message that reports to a [Notifier].
type Reporter interface {
	// Report calls f in its place among the notifications of the message: see [Notifier.Report].
	Report(p *Place, f func())
}

// Report calls f in its place, and ends the place. While f runs, a settled message does not count
// in the pump, so that a slow function delays no other message: settled removes the message from
// the counts, and is not called if too much is unreported. settled is nil for a message that is
// handled exclusively.
func (n *Notifier) Report(p *Place, settled, f func()) {
	defer p.End()
	if len(n.functions) == 0 {
		return
	}
	if settled != nil {
		defer n.unreported.Add(-1)
		if n.unreported.Add(1) <= maxUnreported {
			settled()
		}
	}
	p.Wait()
	f()
}

const (
	// Timeout bounds the wait for the functions.
	Timeout = 10 * time.Second
	// maxUnreturned bounds the calls that were given up.
	maxUnreturned = 100
)

// order keeps the notifications of one message in order.
type order struct {
	waiting atomic.Int32
	mu      sync.Mutex // guards the rest
	last    map[failurelog.Key]*Place
}

// Place is the place of an attempt in the order of the notifications of a message.
type Place struct {
	order  *order
	key    failurelog.Key
	before <-chan struct{} // closed when the place before has ended; nil for the first
	over   chan struct{}
}

// next returns the next place for key.
func (o *order) next(key failurelog.Key) *Place {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := &Place{order: o, key: key, over: make(chan struct{})}
	if last := o.last[key]; last != nil {
		p.before = last.over
	}
	if o.last == nil {
		o.last = map[failurelog.Key]*Place{}
	}
	o.last[key] = p
	return p
}

// Wait waits for the places before, for a limited time and in a limited number of attempts: a
// function that hangs must not stop all attempts for the sake of order.
func (p *Place) Wait() {
	if p.before == nil {
		return
	}
	defer p.order.waiting.Add(-1)
	if p.order.waiting.Add(1) > maxUnreturned {
		return
	}
	timeout := time.NewTimer(Timeout)
	defer timeout.Stop()
	select {
	case <-p.before:
	case <-timeout.C:
	}
}

// End ends the place: the next one may follow.
func (p *Place) End() {
	p.order.mu.Lock()
	defer p.order.mu.Unlock()
	close(p.over)
	if p.order.last[p.key] == p {
		delete(p.order.last, p.key)
	}
}

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

	running    atomic.Int32 // calls of the functions, the calls that were given up included
	unreported atomic.Int32 // notifications of messages that have not returned
	waiting    atomic.Int32 // places that wait for the place before

	mu   sync.Mutex // guards last
	last map[failurelog.Key]*Place
}

// New returns the notifier of functions, whose calls are counted by calls.
func New(
	functions []func(context.Context, recoverability.Notification), log *slog.Logger, calls *overdue.Watch,
) *Notifier {
	n := &Notifier{
		functions: functions, log: log, calls: calls, last: map[failurelog.Key]*Place{},
	}
	for i := range functions {
		n.names = append(n.names, fmt.Sprintf("function %d of Config.Notify", i+1))
	}
	return n
}

// Notify calls the functions, and returns when all have returned, or after [Timeout]. Each
// notification has a Failure.
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
		n.calls.Begin(call, note.Failure.Queue, note.Failure.MessageID, goroutines.ID())
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
func (n *Notifier) Next(key failurelog.Key) *Place {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := &Place{of: n, key: key, over: make(chan struct{})}
	if last := n.last[key]; last != nil {
		p.before = last.over
	}
	n.last[key] = p
	return p
}

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

// Place is the place of an attempt in the order of the notifications of a message.
type Place struct {
	of     *Notifier
	key    failurelog.Key
	before <-chan struct{} // closed when the place before has ended; nil for the first
	over   chan struct{}
}

// Wait waits for the places before, for a limited time and in a limited number of attempts: a
// function that hangs must not stop all attempts for the sake of order.
func (p *Place) Wait() {
	if p.before == nil {
		return
	}
	defer p.of.waiting.Add(-1)
	if p.of.waiting.Add(1) > maxUnreturned {
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
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	close(p.over)
	if p.of.last[p.key] == p {
		delete(p.of.last, p.key)
	}
}

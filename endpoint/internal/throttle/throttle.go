// Package throttle limits the attempts at messages after failures in a row: one message has the
// turn, and only that message is attempted.
package throttle

import (
	"cmp"
	"context"
	"iter"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/failurelog"
	"github.com/holdfast-go/holdfast/endpoint/internal/notify"
	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/recoverability"
)

// Shared has the parts that the limits of an endpoint share.
type Shared struct {
	// SetSerial sets whether the queues of the endpoint start one message at a time.
	SetSerial func(serial bool)
	Notifier  *notify.Notifier
	MaxDelay  time.Duration // of the transport; 0: the transport has no delays

	reports sync.WaitGroup
}

// WaitForReports returns when the changes of all limits have been reported.
func (s *Shared) WaitForReports() { s.reports.Wait() }

// Limits are the limits of an endpoint by the types of messages. The limit for all messages has the
// name "". A nil map has no limits.
type Limits map[string]*Limit

// New returns the limits that the configuration asks for, for messages of the types.
func New(c recoverability.RateLimit, types iter.Seq[string], shared *Shared) Limits {
	switch {
	case c.After <= 0:
		return nil
	case c.Scope != recoverability.ByType:
		return Limits{"": newLimit(c, "", shared)}
	}
	l := Limits{}
	for name := range types {
		l[name] = newLimit(c, name, shared)
	}
	return l
}

// Of returns the limit of a message, or nil. typeOf returns the message's type. Of calls typeOf only
// if each type has a limit.
func (l Limits) Of(typeOf func() string) *Limit {
	if all := l[""]; all != nil {
		return all
	}
	return l[typeOf()]
}

// State is a limit in force.
type State struct {
	Type     string // of messages; "" is the endpoint's
	Since    time.Time
	Failures int // in a row
}

// States returns the limits in force.
func (l Limits) States() (all []State) {
	for _, limit := range l {
		if since, failures := limit.state(); !since.IsZero() {
			all = append(all, State{limit.Type, since, failures})
		}
	}
	return all
}

// Limit is the limit of an endpoint, or of a type of messages. It is safe for concurrent use.
type Limit struct {
	*Shared

	Type   string // "" is the endpoint's
	config recoverability.RateLimit

	mu       sync.Mutex    // guards the rest
	failures int           // in a row
	id       string        // of the first message that failed
	several  bool          // other messages have failed
	first    time.Time     // when the first failed
	since    time.Time     // when the limit began; zero without a limit
	next     time.Time     // when the next attempt may begin
	turn     *Turn         // of the message that has the turn; nil when it is free
	changed  chan struct{} // closed when the turn is free again, or the limit ends

	reporting sync.Mutex // held while a change is reported, so that reports are in order
	reported  time.Time  // since when attempts are limited, as last reported
}

func newLimit(c recoverability.RateLimit, name string, shared *Shared) *Limit {
	c.Delay = cmp.Or(c.Delay, recoverability.DefaultRateLimitDelay)
	c.MaxFailures = cmp.Or(c.MaxFailures, recoverability.DefaultRateLimitMaxFailures)
	c.MaxTime = cmp.Or(c.MaxTime, recoverability.DefaultRateLimitMaxTime)
	return &Limit{Shared: shared, Type: name, config: c, changed: make(chan struct{})}
}

// blocked is the wait of a message while another message has the turn.
const blocked time.Duration = math.MaxInt64

// wait returns how long a message has to wait before its attempt. A free turn is taken. The wait is
// [blocked] if another message has the turn. changed is closed when the wait may be another.
func (l *Limit) wait(t *Turn, now time.Time) (wait time.Duration, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.since.IsZero():
		return 0, nil
	case l.turn == nil:
		l.turn = t
	case l.turn != t:
		return blocked, l.changed
	}
	return max(0, l.next.Sub(now)), l.changed
}

// pass frees the turn, if t has the turn.
func (l *Limit) pass(t *Turn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.turn == t {
		l.free()
	}
}

// free frees the turn and wakes the messages that wait. Called with mu held.
func (l *Limit) free() {
	l.turn = nil
	close(l.changed)
	l.changed = make(chan struct{})
}

// failed counts a failure of the message with an id, and reports whether attempts were limited
// before. Then the failure uses up no retry.
func (l *Limit) failed(id string, now time.Time) (limited bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failures == 0 {
		l.id, l.first = id, now
	}
	l.several = l.several || id != l.id
	l.failures++
	limited = !l.since.IsZero()
	lasting := l.several || now.Sub(l.first) > l.config.Delay
	if !limited && lasting && l.failures >= l.config.After {
		l.since = now
	}
	l.next = now.Add(l.config.Delay)
	return limited
}

// succeeded ends the limit after a success, and reports whether attempts were limited.
func (l *Limit) succeeded() (ended bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ended = !l.since.IsZero()
	l.failures, l.several, l.since = 0, false, time.Time{}
	if ended {
		l.free()
	}
	return ended
}

// isExhausted reports whether a message with failures has failed as often, or for as long, as the
// configuration allows.
func (l *Limit) isExhausted(t fault.Throttled, now time.Time) bool {
	return t.Failures >= l.config.MaxFailures || now.Sub(t.Since) >= l.config.MaxTime
}

// maxDeferral bounds the delay of a postponed message.
const maxDeferral = 5 * time.Minute

// report carries out a change of the limit since the last call, and notifies of the change. err is
// the failure of d at the time now, or nil after a success.
func (l *Limit) report(ctx context.Context, d *settle.Delivery, err error, now time.Time) {
	l.reporting.Lock()
	defer l.reporting.Unlock()
	since, failures := l.state()
	before, kind := l.reported, recoverability.RateLimitStarted
	if l.reported = since; since.Equal(before) {
		return
	}
	if l.Type == "" {
		l.SetSerial(!since.IsZero())
	}
	if since.IsZero() {
		kind = recoverability.RateLimitEnded
		d.Log.InfoContext(ctx, "a message was handled: attempts are no longer limited",
			slog.String("type", l.Type), slog.Duration("after", now.Sub(before)))
	} else {
		d.Log.WarnContext(ctx, "failures in a row: one message at a time is attempted until one is handled",
			slog.String("type", l.Type), slog.Int("failures", failures), slog.Any("error", err))
	}
	concerns := &recoverability.Failure{Queue: d.Queue, Type: l.Type, Err: err, Now: now}
	place := l.Notifier.Next(failurelog.KeyOf("", l.Type)) // no queue has the name ""
	l.reports.Go(func() {                                  // the next change does not wait for it
		defer place.End()
		place.Wait()
		l.Notifier.Notify(ctx, recoverability.Notification{Kind: kind, Failure: concerns})
	})
}

// state returns since when attempts are limited, zero if they are not, and the number of failures
// in a row.
func (l *Limit) state() (since time.Time, failures int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.since, l.failures
}

// Turn is a message's claim to the turn, for all attempts at one delivery. The zero value is for a
// message that is never limited.
type Turn struct {
	Limit *Limit // nil: attempts at the message are never limited
	// Tries counts the failures while attempts were limited.
	Tries    int
	failures fault.Throttled // these, and the failures of earlier deliveries; set if Tries > 0
}

// Wait returns how long the message has to wait before its attempt. A free turn is taken. changed
// is closed when the wait may be another. yields: the message returns to its queue as a copy, so
// that the messages of other types behind this message are attempted.
func (t *Turn) Wait(now time.Time) (wait time.Duration, changed <-chan struct{}, yields bool) {
	if t.Limit == nil {
		return 0, nil, false
	}
	wait, changed = t.Limit.wait(t, now)
	return wait, changed, wait == blocked && t.Limit.Type != "" && t.Limit.MaxDelay > 0
}

// Pass frees the turn for another message.
func (t *Turn) Pass() {
	if t.Limit != nil {
		t.Limit.pass(t)
	}
}

// retriesInPlace is how often a throttled message is attempted again within its delivery before
// another message has the turn.
const retriesInPlace = 3

// Verdict is the meaning of a failure for the retries of a message. The policy decides about the
// failure that begins the limit, and about a failure more than RateLimit allows.
type Verdict int8

// The verdicts.
const (
	Counted Verdict = iota // the policy decides
	Again                  // no retry is used up: the message waits for its next attempt
	Later                  // no retry is used up: the message returns to its queue
)

// Failed records a failure of the message of d.
func (t *Turn) Failed(ctx context.Context, d *settle.Delivery, err error, now time.Time) Verdict {
	limited := t.Limit.failed(d.ID, now)
	t.Limit.report(ctx, d, err, now)
	if !limited || d.CompletedFirst() {
		return Counted
	}
	if t.add(d, now); t.Limit.isExhausted(t.failures, now) {
		d.Log.InfoContext(ctx, "a message failed as often, or for as long, as RateLimit allows: the policy decides",
			slog.String("message", d.LogID()),
			slog.Int("failures", t.failures.Failures), slog.Time("since", t.failures.Since))
		return Counted
	}
	d.Log.InfoContext(ctx, "a message failed while attempts are limited: it uses up no retry",
		slog.String("message", d.LogID()), slog.Int("tries", t.Tries), slog.Any("error", err))
	if t.Tries <= retriesInPlace {
		return Again
	}
	return Later
}

// add counts a failure while attempts are limited.
func (t *Turn) add(d *settle.Delivery, now time.Time) {
	if t.Tries == 0 {
		t.failures = t.earlier(d, now)
	}
	t.Tries++
	t.failures = t.failures.Add(now)
}

// Succeeded records that the message of d was handled.
func (t *Turn) Succeeded(ctx context.Context, d *settle.Delivery) {
	if t.isRemembered() {
		d.ForgetFailures()
	}
	if t.Limit.succeeded() {
		t.Limit.report(ctx, d, nil, time.Now())
	}
}

// Deferral returns for how long the message is postponed, if the transport has delays: for Delay, or
// a quarter of the outage up to 5 minutes, whichever is longer. So the queue does not go round and
// round in a long outage.
func (t *Turn) Deferral(now time.Time) time.Duration {
	delay := t.Limit.config.Delay
	since, _ := t.Limit.state()
	if since.IsZero() {
		return delay
	}
	return max(delay, min(now.Sub(since)/4, maxDeferral))
}

// Headers returns the headers of the copy that postpones the message of d, with no retry used up.
func (t *Turn) Headers(d *settle.Delivery) header.Map {
	used := fault.UsedRetries(d.Original.Headers)
	if attempt := d.Received.Attempt(); attempt.Exact {
		used += attempt.N - 1
	} else { // as far as this process knows
		known, _ := d.Failures.Known(d.FailureKey())
		used += known.Failed
	}
	return fault.DeferHeaders(d.Original.Headers, used, t.all(d))
}

// isRemembered reports whether this process remembers the failures of the message that used up no
// retry, because the transport has no copies for later.
func (t *Turn) isRemembered() bool { return t.Limit != nil && t.Limit.MaxDelay == 0 }

// Remember has this process remember the failures of the message that used up no retry.
func (t *Turn) Remember(d *settle.Delivery) { d.Failures.SetThrottled(d.FailureKey(), t.all(d)) }

// earlier returns the failures before this delivery that used up no retry. The policy forgets them
// when it decides: then the message has another delivery of the same copy.
func (t *Turn) earlier(d *settle.Delivery, now time.Time) fault.Throttled {
	switch {
	case t.isRemembered():
		known, _ := d.Failures.Known(d.FailureKey())
		return known.Throttled
	case d.Received.Attempt().N > 1:
		return fault.Throttled{}
	}
	return fault.ThrottledFailures(d.Original.Headers, now)
}

// all returns the failures that used up no retry, with the failures of this delivery.
func (t *Turn) all(d *settle.Delivery) fault.Throttled {
	if t.Tries > 0 {
		return t.failures
	}
	return t.earlier(d, time.Now())
}

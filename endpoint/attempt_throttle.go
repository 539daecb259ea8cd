package endpoint

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// retriesInPlace is how often a throttled message is attempted again here before
// another has its turn.
const retriesInPlace = 3

// throttle is the rate limit of the endpoint or of a type of messages. While it is limited, one
// message has the turn: it alone is attempted.
type throttle struct {
	ofType string // "" is the endpoint's

	mu      sync.Mutex // guards the rest
	limiter fault.Limiter
	turn    *throttling   // of the message that has it
	changed chan struct{} // closed when the turn is free again, or the limit over

	telling sync.Mutex // held while a change is reported, so that reports are in order
	told    time.Time  // since when attempts are limited, as last reported
}

// throttling is a message's part in a rate limit. It lasts for all attempts at a delivery.
type throttling struct {
	in       *incoming
	throttle *throttle // nil where nothing is limited
	tries    int       // failures while limited, since the message was received
	until    time.Time // until when the message may wait here; zero is for ever

	failures fault.Throttled // those, and the ones of earlier deliveries; known once tries > 0
}

func newThrottle(limit recoverability.RateLimit, ofType string) *throttle {
	return &throttle{
		ofType: ofType, limiter: fault.Limiter{RateLimit: limit}, changed: make(chan struct{}),
	}
}

// throttles are the rate limits of an endpoint, each of one type or one of all.
type throttles struct {
	all    *throttle
	byType map[string]*throttle
}

func newThrottles(limit recoverability.RateLimit, types *registry) throttles {
	var t throttles
	switch {
	case limit.After <= 0:
	case limit.Scope == recoverability.ByType:
		t.byType = make(map[string]*throttle, len(types.all))
		for _, m := range types.all {
			t.byType[m.name] = newThrottle(limit, m.name)
		}
	default:
		t.all = newThrottle(limit, "")
	}
	return t
}

// of is the throttle that a message is subject to, nil where there is none.
func (t *throttles) of(in *incoming) *throttle {
	if t.byType == nil {
		return t.all
	}
	if m, _ := in.e.types.named(in.delivery.Message().Headers.Get(header.EnclosedMessageTypes)); m != nil {
		return t.byType[m.name]
	}
	return nil
}

// each calls f with every throttle that is limited.
func (t *throttles) each(f func(t *throttle, since time.Time, failures int)) {
	limited := func(t *throttle) {
		t.mu.Lock()
		since, failures := t.limiter.Limited()
		t.mu.Unlock()
		if !since.IsZero() {
			f(t, since, failures)
		}
	}
	if t.all != nil {
		limited(t.all)
	}
	for _, one := range t.byType {
		limited(one)
	}
}

// ask returns how long h has to wait before its attempt. It takes the turn if that is free; if it is not, wait
// is the maximum. changed is closed when the answer may be another.
func (t *throttle) ask(h *throttling) (wait time.Duration, changed <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch since, _ := t.limiter.Limited(); {
	case since.IsZero():
		return 0, nil
	case t.turn == nil:
		t.turn = h
	case t.turn != h:
		return math.MaxInt64, t.changed
	}
	return t.limiter.Until(time.Now()), t.changed
}

// pass frees the turn, if h has it.
func (t *throttle) pass(h *throttling) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.turn == h {
		t.change()
	}
}

// change frees the turn and wakes the messages that wait. Called with mu held.
func (t *throttle) change() {
	t.turn = nil
	close(t.changed)
	t.changed = make(chan struct{})
}

// failed records a failure of the message with that id, and reports whether attempts are limited.
func (t *throttle) failed(id string) (limited bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.limiter.Failed(id, time.Now())
}

// exhausted reports whether the policy decides about a message with these failures.
func (t *throttle) exhausted(of fault.Throttled, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.limiter.Exhausted(of, now)
}

// succeeded records a success, and reports whether it ended the limit.
func (t *throttle) succeeded() (ended bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ended = t.limiter.Succeeded(); ended {
		t.change()
	}
	return ended
}

// deferral returns for how long to postpone a message.
func (t *throttle) deferral() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.limiter.Deferral(time.Now())
}

// newThrottling returns the message's part in the rate limit that applies to it, if any.
func (in *incoming) newThrottling() throttling {
	t := throttling{in: in, throttle: in.e.throttles.of(in)}
	if most := in.live.limits.MaxHold; most > 0 {
		t.until = time.Now().Add(most/2 - in.slot.Age())
	}
	return t
}

// admit waits, without a slot, until an attempt is allowed. It returns nil then, and otherwise the outcome of
// the attempt that is not made.
func (a *attempt) admit(ctx context.Context) outcome {
	t := &a.throttling
	if t.throttle == nil {
		return nil
	}
	waited := t.tries > 0
	for wait, changed := t.throttle.ask(t); wait > 0; wait, changed = t.throttle.ask(t) {
		if wait == math.MaxInt64 && t.throttle.ofType != "" && t.deferrable() {
			return throttled{} // so that messages of other types, which are behind it, are attempted
		}
		waited = true
		a.slot.Free()
		if a.waitFor(ctx, wait, changed) {
			continue
		}
		if out := a.stopped(ctx); out != nil {
			return out
		}
		return throttled{}
	}
	if waited && a.slot.Regain(ctx) != nil {
		return a.stopped(ctx)
	}
	return nil
}

// waitFor waits for d, or for a change. It reports false when there is no more time: the endpoint
// stops, the lease is lost, or the broker is about to redeliver the message.
func (a *attempt) waitFor(ctx context.Context, d time.Duration, changed <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	var late <-chan time.Time
	if until := a.throttling.until; !until.IsZero() {
		end := time.NewTimer(time.Until(until))
		defer end.Stop()
		late = end.C
	}
	select {
	case <-timer.C:
		return true
	case <-changed:
		return true
	case <-late:
	case <-a.slot.Stopping():
	case <-ctx.Done():
	}
	return false
}

// stopped returns the outcome of a message that waits when the endpoint stops or its lease is lost; nil before.
func (a *attempt) stopped(ctx context.Context) outcome {
	select {
	case <-ctx.Done():
	case <-a.slot.Stopping():
	default:
		return nil
	}
	if out := a.interrupted(ctx, context.Cause(ctx)); out != nil {
		return out
	}
	return interrupted{}
}

// throttle records a failure. It reports whether attempts are limited, so that the failure uses up no retry. The failure
// that begins the limit, and one more than RateLimit allows, are for recoverability to decide about.
func (a *attempt) throttle(ctx context.Context, err error) bool {
	t := &a.throttling
	if t.throttle == nil {
		return false
	}
	f := a.facts(err)
	if !f.Mendable() {
		return false
	}
	limited := t.throttle.failed(a.id)
	t.report(ctx, f)
	if !limited || a.settlement.completedFirst() {
		return false
	}
	if t.tries == 0 {
		t.failures = t.earlier(f.Now)
	}
	t.tries++
	t.failures = t.failures.Add(f.Now)
	if t.throttle.exhausted(t.failures, f.Now) {
		a.log().InfoContext(ctx, "a message has failed while attempts are limited as often, or for as long, as RateLimit allows: the policy decides",
			slog.String("message", a.id), slog.Int("failures", t.failures.Failures), slog.Time("since", t.failures.Since))
		return false
	}
	a.log().InfoContext(ctx, "a message failed while attempts are limited: it is held back",
		slog.String("message", a.id), slog.Int("tries", t.tries), slog.Any("error", err))
	return true
}

// succeeded records that a message was handled.
func (t *throttling) succeeded(ctx context.Context) {
	if t.throttle != nil && t.throttle.succeeded() {
		t.report(ctx, recoverability.Failure{Queue: t.in.queue, Now: time.Now()})
	}
}

// pass frees the turn for another message.
func (t *throttling) pass() {
	if t.throttle != nil {
		t.throttle.pass(t)
	}
}

// report carries out a change of the limit, if there was one, and notifies of it.
func (t *throttling) report(ctx context.Context, f recoverability.Failure) {
	in, th := t.in, t.throttle
	th.telling.Lock()
	defer th.telling.Unlock()
	th.mu.Lock()
	since, failures := th.limiter.Limited()
	th.mu.Unlock()
	if since.Equal(th.told) {
		return
	}
	before := th.told
	th.told = since
	if th.ofType == "" {
		in.live.limit(!since.IsZero())
	}
	kind := RateLimitStarted
	if since.IsZero() {
		kind = RateLimitEnded
		in.log().InfoContext(ctx, "a message was handled: attempts are no longer limited",
			slog.String("type", th.ofType), slog.Duration("after", f.Now.Sub(before)))
	} else {
		in.log().WarnContext(ctx, "failures in a row: one message at a time is attempted until one is handled",
			slog.String("type", th.ofType), slog.Int("failures", failures), slog.Any("error", f.Err))
	}
	n := Notification{Kind: kind, Failure: &recoverability.Failure{Queue: f.Queue, Type: th.ofType, Err: f.Err, Now: f.Now}}
	place := in.e.notifications.next(sha256.Sum256([]byte("\x00" + th.ofType))) // no queue has that name
	in.live.telling.Go(func() {                                                 // the next change does not wait for it
		defer place.end()
		place.wait()
		in.e.notify(ctx, n)
	})
}

// limit has the endpoint's queues handled one message at a time, or no longer.
func (l *live) limit(limited bool) {
	for _, s := range l.sources {
		s.SetSerial(limited)
	}
}

// deferrable reports whether the message can return later as a copy.
func (t *throttling) deferrable() bool { return t.in.live.limits.MaxDelay > 0 }

// postpone returns the message to its queue with no retry used up: for later, as a copy, where the transport
// has delays. Else it is released, which counts as an attempt where releases are not free.
func (t *throttling) postpone(ctx context.Context) {
	in := t.in
	if !t.deferrable() {
		in.e.failures.SetThrottled(in.failureKey(), t.all())
		in.settlement.release(ctx)
		return
	}
	after := min(t.throttle.deferral(), in.live.limits.MaxDelay)
	headers := fault.DeferHeaders(in.original.Headers, t.usedRetries(), t.all())
	if err := in.settlement.complete(ctx, nil, []transport.Operation{in.copyTo(in.queue, headers, after)}); err != nil {
		in.requeue(ctx, in.keep(ctx, err))
		return
	}
	if !in.settlement.lostLease() {
		in.e.failures.Forget(in.failureKey()) // the copy carries them
	}
	in.log().DebugContext(ctx, "a message is put off, without a retry used up",
		slog.String("message", in.id), slog.Duration("after", after))
}

// usedRetries returns how many immediate retries of this cycle the message has used up, as far as this process knows where
// the broker does not count.
func (t *throttling) usedRetries() int {
	in := t.in
	used := fault.UsedRetries(in.original.Headers)
	if attempt := in.delivery.Attempt(); attempt.Exact {
		return used + attempt.N - 1
	}
	return used + in.e.failures.Failed(in.failureKey())
}

// earlier returns the failures before this delivery that used up no retry. They are forgotten once the policy has
// decided: then the message has another delivery of the same copy.
func (t *throttling) earlier(now time.Time) fault.Throttled {
	in := t.in
	switch {
	case !t.deferrable():
		return in.e.failures.Throttled(in.failureKey())
	case in.delivery.Attempt().N > 1:
		return fault.Throttled{}
	}
	return fault.ThrottledFailures(in.original.Headers, now)
}

// all returns those, and the failures of this delivery.
func (t *throttling) all() fault.Throttled {
	if t.tries > 0 {
		return t.failures
	}
	return t.earlier(time.Now())
}

// remembered reports whether this process alone may know of such failures.
func (t *throttling) remembered() bool { return t.throttle != nil && !t.deferrable() }

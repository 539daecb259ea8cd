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
)

// retriesInPlace is how often a message that is held back is attempted again before
// another has its turn.
const retriesInPlace = 3

// throttle is the rate limit of the endpoint or of a type of messages. While it is limited, one
// message has the turn: it alone is attempted.
type throttle struct {
	ofType string // "" is the endpoint's

	mu      sync.Mutex // guards the rest
	limiter fault.Limiter
	turn    *holding      // of the message that has it
	changed chan struct{} // closed when the turn is free again, or the limit over

	telling sync.Mutex // held while somebody is told, so that it is in order
	told    time.Time  // since when attempts are limited, as last told
}

// holding is what a message is held back by. It goes with the message from one attempt in
// place to the next.
type holding struct {
	throttle *throttle // nil where nothing is limited
	tries    int       // failures while limited, since the message was received
	until    time.Time // when it must have left our hands; zero is never

	throttled fault.Throttled // the failures of those and of earlier deliveries; known once tries > 0
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

// ask tells h how long to wait before its attempt: 0 is not at all. It takes the turn if it is
// free, and waits as long as it takes if it is not. changed is closed when asking again helps.
func (t *throttle) ask(h *holding) (wait time.Duration, changed <-chan struct{}) {
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

// pass gives the turn away, if h has it.
func (t *throttle) pass(h *holding) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.turn == h {
		t.change()
	}
}

// change frees the turn and wakes who waits. Called with mu held.
func (t *throttle) change() {
	t.turn = nil
	close(t.changed)
	t.changed = make(chan struct{})
}

// failed takes in a failure of the message with that id.
func (t *throttle) failed(id string) (limited bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.limiter.Failed(id, time.Now())
}

// exhausted reports whether the policy is to decide about a message with these failures.
func (t *throttle) exhausted(of fault.Throttled, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.limiter.Exhausted(of, now)
}

// succeeded takes in a success, and reports whether it ended the limit.
func (t *throttle) succeeded() (ended bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ended = t.limiter.Succeeded(); ended {
		t.change()
	}
	return ended
}

// deferral is for how long to put a message off.
func (t *throttle) deferral() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.limiter.Deferral(time.Now())
}

// beHeld makes the message subject to the rate limit that there may be.
func (in *incoming) beHeld() {
	in.holding = &holding{throttle: in.e.throttles.of(in)}
	if most := in.live.limits.MaxHold; most > 0 {
		in.holding.until = time.Now().Add(most/2 - in.slot.Age())
	}
}

// admit waits until the message may be attempted, without a slot. It is false when the message
// was given back instead.
func (in *incoming) admit(ctx context.Context) bool {
	h := in.holding
	if h == nil || h.throttle == nil {
		return true
	}
	waited := h.tries > 0
	for wait, changed := h.throttle.ask(h); wait > 0; wait, changed = h.throttle.ask(h) {
		if wait == math.MaxInt64 && h.throttle.ofType != "" && in.deferrable() {
			in.putOff(ctx) // so that other types, which are behind it, have their turn
			return false
		}
		waited = true
		in.slot.Free()
		if in.waitFor(ctx, wait, changed) {
			continue
		}
		if in.released(ctx) {
			return false
		}
		in.putOff(ctx)
		return false
	}
	if waited && in.slot.Regain(ctx) != nil {
		return !in.released(ctx)
	}
	return true
}

// waitFor waits for d, or for a change. It is false when there is no more time: the endpoint
// stops, the lease is lost, or the broker is about to take the message back.
func (in *incoming) waitFor(ctx context.Context, d time.Duration, changed <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	var late <-chan time.Time
	if until := in.holding.until; !until.IsZero() {
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
	case <-in.slot.Stopping():
	case <-ctx.Done():
	}
	return false
}

// released gives back a message that waits while the endpoint stops, and lets go of one whose
// lease is lost.
func (in *incoming) released(ctx context.Context) bool {
	select {
	case <-ctx.Done():
	case <-in.slot.Stopping():
	default:
		return false
	}
	if !in.interrupted(ctx, context.Cause(ctx)) {
		in.release(ctx)
	}
	return true
}

// heldBack takes in a failure. While attempts are limited the message stays in hand for another
// attempt, or is put off, and is dealt with: no retry is used up. It is false when
// recoverability is to decide, as it is about the failure that begins the limit.
func (in *incoming) heldBack(ctx context.Context, err error) bool {
	h := in.holding
	if h == nil || h.throttle == nil {
		return false
	}
	f := in.facts(err)
	if !f.Mendable() {
		return false
	}
	limited := h.throttle.failed(in.id)
	in.follow(ctx, f)
	if !limited || in.taken {
		return false
	}
	if h.tries == 0 {
		h.throttled = in.throttled(f.Now)
	}
	h.tries++
	h.throttled = h.throttled.Add(f.Now)
	if h.throttle.exhausted(h.throttled, f.Now) {
		in.log().InfoContext(ctx, "a message has failed while attempts are limited as often, or for as long, as RateLimit allows: the policy decides",
			slog.String("message", in.id), slog.Int("failures", h.throttled.Failures), slog.Time("since", h.throttled.Since))
		return false
	}
	in.log().InfoContext(ctx, "a message failed while attempts are limited: it is held back",
		slog.String("message", in.id), slog.Int("tries", h.tries), slog.Any("error", err))
	if h.tries > retriesInPlace {
		in.putOff(ctx)
		return true
	}
	again := &incoming{e: in.e, live: in.live, delivery: in.delivery, slot: in.slot, queue: in.queue, holding: h}
	in.holding = nil
	again.attempt(ctx)
	return true
}

// succeeded takes in that the message was handled.
func (in *incoming) succeeded(ctx context.Context) {
	if h := in.holding; h != nil && h.throttle != nil && h.throttle.succeeded() {
		in.follow(ctx, recoverability.Failure{Queue: in.queue, Now: time.Now()})
	}
}

// letGo gives the turn to another message.
func (in *incoming) letGo() {
	if h := in.holding; h != nil && h.throttle != nil {
		h.throttle.pass(h)
	}
}

// follow does what a change of the limit asks for, and tells of it.
func (in *incoming) follow(ctx context.Context, f recoverability.Failure) {
	t := in.holding.throttle
	t.telling.Lock()
	defer t.telling.Unlock()
	t.mu.Lock()
	since, failures := t.limiter.Limited()
	t.mu.Unlock()
	if since.Equal(t.told) {
		return
	}
	before := t.told
	t.told = since
	if t.ofType == "" {
		in.live.limit(!since.IsZero())
	}
	kind := RateLimitStarted
	if since.IsZero() {
		kind = RateLimitEnded
		in.log().InfoContext(ctx, "a message was handled: attempts are no longer limited",
			slog.String("type", t.ofType), slog.Duration("after", f.Now.Sub(before)))
	} else {
		in.log().WarnContext(ctx, "failures in a row: one message at a time is attempted until one is handled",
			slog.String("type", t.ofType), slog.Int("failures", failures), slog.Any("error", f.Err))
	}
	n := Notification{Kind: kind, Failure: &recoverability.Failure{Queue: f.Queue, Type: t.ofType, Err: f.Err, Now: f.Now}}
	turn := in.e.turns.take(sha256.Sum256([]byte("\x00" + t.ofType))) // no queue has that name
	in.live.telling.Go(func() {                                       // the next change does not wait for it
		defer turn.end()
		turn.wait()
		in.e.notify(ctx, n)
	})
}

// limit has the endpoint's queues handled one message at a time, or no longer.
func (l *live) limit(limited bool) {
	for _, s := range l.sources {
		s.SetSerial(limited)
	}
}

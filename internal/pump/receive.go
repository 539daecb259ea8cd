package pump

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

// call is a running Receive.
type call struct {
	limit int
	bytes int64 // reserved for the result
	began time.Duration
}

// fetch receives while there is room, until ctx ends. Several goroutines may fetch: ask makes all
// but the first wait if a single call is enough.
func (p *Pump) fetch(ctx, work context.Context) {
	for {
		c, ok := p.ask()
		if !ok {
			return
		}
		var ds []transport.Delivery
		var err error
		stop := p.listen(ctx)
		if r := p.share.receiver; r != nil {
			ds, err = r.ReceiveBytes(ctx, c.limit, c.bytes)
		} else {
			ds, err = p.cfg.Receiver.Receive(ctx, c.limit)
		}
		stop()
		bad := err != nil || len(ds) == 0
		ss := p.slots(work, ds)
		if p.cfg.Arrived != nil && len(ss) > 0 {
			p.cfg.Arrived(ctx, ss)
		}
		pausing, windowing := p.arrive(c, ss, bad)
		if windowing {
			p.giveWindow()
		}
		if ctx.Err() != nil {
			return
		}
		p.outage.note(ctx, err, p.now()-c.began)
		if pausing {
			p.pause(ctx, err, p.now()-c.began)
		}
	}
}

// ask waits for room and reserves the room for a call. ask returns false when the pump stops.
func (p *Pump) ask() (call, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.phase == running && p.room() == 0 {
		p.changed.Wait()
	}
	if p.phase != running {
		return call{}, false
	}
	c := call{limit: p.room(), began: p.now()}
	c.bytes = p.share.ask(c.limit)
	p.calls++
	p.asked += c.limit
	p.wake()
	return c, true
}

// room returns the number of messages to ask for now; 0 for no call. Called with mu held.
func (p *Pump) room() int {
	if p.paused || p.quiet != nil {
		return 0
	}
	// A further Receive runs beside a running Receive if the last was full, and messages need not
	// stay in order.
	if p.calls > 0 && (!p.full || p.calls >= p.cfg.Limits.ParallelReceive || p.concurrency == 1) {
		return 0
	}
	ahead := p.ahead()
	n := p.free() + ahead - p.buffer.len() - p.asked
	if n < max(1, ahead/2) {
		return 0 // fewer, larger requests: the buffer is enough for a round trip
	}
	if p.cfg.Limits.Unbuffered && p.calls > 0 && n < p.cfg.Limits.MaxReceive {
		return 0 // a larger call follows the running one
	}
	if most := p.cfg.Limits.MaxReceive; most > 0 {
		n = min(n, most)
	}
	return p.share.room(p, n)
}

// slots returns a slot for each delivery. If there are leases, each slot has its own context.
func (p *Pump) slots(work context.Context, ds []transport.Delivery) []Slot {
	ss := make([]Slot, len(ds))
	now := p.now()
	for i, d := range ds {
		m := d.Message()
		ss[i] = Slot{pump: p, delivery: d, ctx: work, since: now, at: -1, size: int64(len(m.Body) + m.Headers.Size())}
		if p.renewer != nil {
			ss[i].ctx, ss[i].cancel = context.WithCancelCause(work) //nolint:fatcontext // one for each, not one in the other
		}
	}
	return ss
}

// arrive ends call c and buffers the messages. After a bad call no further call starts before the
// caller has paused. The caller must pause if arrive returns pausing, and call giveWindow if it
// returns windowing.
func (p *Pump) arrive(c call, ss []Slot, bad bool) (pausing, windowing bool) {
	now := p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls--
	p.asked -= c.limit
	p.share.asked -= c.bytes
	before := p.share.held
	p.take(ss)
	p.full = len(ss) >= c.limit || p.share.receiver != nil && 2*(p.share.held-before) >= c.bytes
	p.startReady()
	if bad {
		pausing = !p.paused
		p.paused = true
	} else {
		p.demand.measure(now, now-c.began, p.finished, p.full)
	}
	if p.share.prefetch && p.phase == running && !p.windowing && p.windowSize() != p.window {
		p.windowing, windowing = true, true
	}
	p.wake()
	return pausing, windowing
}

// take buffers received messages. Called with mu held.
func (p *Pump) take(ss []Slot) {
	p.share.claim()
	now := p.now()
	for i := range ss {
		s := &ss[i]
		p.buffer.push(s)
		if p.renewer != nil {
			s.leased, s.due = now, now+p.cfg.Limits.Lease/3
			s.at = int32(len(p.leases)) //nolint:gosec // bounded by the concurrency
			p.leases = append(p.leases, s)
		}
		p.share.take(s.size)
	}
}

// pause makes all fetch goroutines wait: longer after each failure; after an empty Receive just
// long enough not to spin.
func (p *Pump) pause(ctx context.Context, err error, took time.Duration) {
	d := backoffMin - took
	if err != nil {
		d = p.outage.pause()
	}
	if d > 0 {
		_ = backoff.Sleep(ctx, d) // the end of ctx is seen by ask
	}
	p.mu.Lock()
	p.paused = false // the caller asks next, and wakes the waiting goroutines
	p.mu.Unlock()
}

// buffersPerSlot bounds the buffer, however fast the handlers are.
const buffersPerSlot = 8

// listen records the end of an outage while a Receive waits for a message. The caller calls stop
// when Receive has returned.
func (p *Pump) listen(ctx context.Context) (stop func()) {
	longest, is := p.outage.failing()
	if !is {
		return func() {}
	}
	return Listen(ctx, p.cfg.Receiver, longest, func() { p.outage.note(ctx, nil, 0) })
}

// ahead returns the number of messages to keep buffered. Called with mu held.
//
// A buffered message is invisible to other instances, and has one attempt less if this process
// crashes. So the buffer holds no more than the handlers need during a few Receives.
func (p *Pump) ahead() int {
	c := p.concurrency
	switch {
	case p.cfg.Limits.Unbuffered || p.serial:
		return 0
	case p.cfg.Limits.Prefetch && c == 1:
		return 1 // already prefetched, so that the only worker need not wait for a Receive
	case p.cfg.Limits.Prefetch && p.cfg.Arrived == nil:
		return 0
	case p.cfg.Limits.Prefetch:
		return min(p.demand.size, c) // already prefetched; slow handlers leave messages to the driver
	}
	return min(max(p.demand.size, c/2, 1), buffersPerSlot*c)
}

// windowSize returns the receiver's window: the bound of the number and of the bytes of messages,
// and a place for each held message that the driver counts. Called with mu held.
func (p *Pump) windowSize() int {
	return p.share.bound(p, p.countWindow(), p.share.window) + p.widening
}

// countWindow returns how many deliveries may be in flight: handled and settling messages, and the
// buffer. Where the driver prefetches, the last part is as large as the concurrency, and the sum is
// doubled for deliveries on their way and for acknowledgements that wait to be sent together.
// Called with mu held.
func (p *Pump) countWindow() int {
	c := p.concurrency
	switch {
	case p.serial:
		return 1
	case c == 1 && p.cfg.Limits.Prefetch:
		return 3
	case c == 1:
		return 1 + buffersPerSlot
	case p.cfg.Limits.Prefetch:
		return 2 * (c + p.settles() + c)
	default:
		return c + p.settles() + buffersPerSlot*c
	}
}

// beginWindow reports whether the caller must call giveWindow, without mu. Called with mu held.
func (p *Pump) beginWindow() bool {
	begins := p.phase == running && !p.windowing
	p.windowing = p.windowing || begins
	return begins
}

// giveWindow sets the receiver's window until the window is right. The goroutine that has set
// windowing calls giveWindow: mu cannot be held during the call, and an older window must not be set
// last.
func (p *Pump) giveWindow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for n := p.windowSize(); n != p.window; n = p.windowSize() {
		p.window = n
		p.share.window = n - p.widening
		p.share.claim()
		p.mu.Unlock()
		p.cfg.Receiver.Window(n)
		p.mu.Lock()
	}
	p.windowing = false
	p.wake()
}

const (
	backoffMin = 100 * time.Millisecond
	backoffMax = 10 * time.Second
)

// outage is a time in which Receive fails. It paces the attempts, and logs and reports the first
// failure and the end.
type outage struct {
	logger *slog.Logger
	notify func(error)
	turn   chan struct{} // full while a result is recorded: one after the other, in order; it guards the rest

	pace     backoff.Backoff
	failures int
	since    time.Time
	longest  time.Duration // the duration of a failed Receive, at most
}

const (
	// listenEvery is how often a driver is asked whether the broker answers, during a Receive that
	// follows a failed one.
	listenEvery = time.Second
	// silence is how long such a Receive waits at least, if the driver cannot tell, before it
	// counts as a success.
	silence = 15 * time.Second
	// longFailure bounds what counts of the duration of a failed Receive. The first of an outage
	// may have waited for a message for hours before the outage began.
	longFailure = time.Minute
)

func newOutage(logger *slog.Logger, notify func(error)) outage {
	pace := backoff.Backoff{Min: backoffMin, Max: backoffMax}
	return outage{logger: logger, notify: notify, turn: make(chan struct{}, 1), pace: pace}
}

// note records the result of a Receive, and its duration.
func (o *outage) note(ctx context.Context, err error, took time.Duration) {
	o.turn <- struct{}{}
	defer func() { <-o.turn }()
	switch {
	case err != nil:
		o.longest = max(o.longest, took)
		if o.failures++; o.failures == 1 {
			o.since = time.Now()
			o.logger.LogAttrs(ctx, slog.LevelWarn, "receiving fails, trying again", slog.Any("error", err))
		}
	case o.failures == 0:
		return
	default:
		o.logger.LogAttrs(ctx, slog.LevelInfo, "receiving works again",
			slog.Int("failures", o.failures), slog.Duration("after", time.Since(o.since)))
		o.failures, o.longest = 0, 0
		o.pace.Reset()
	}
	o.notify(err)
}

// pause returns the wait before the next attempt.
func (o *outage) pause() time.Duration {
	o.turn <- struct{}{}
	defer func() { <-o.turn }()
	return o.pace.Next()
}

// failing reports whether the last Receive failed, and returns how long a failed Receive of this
// outage took at most.
func (o *outage) failing() (longest time.Duration, is bool) {
	o.turn <- struct{}{}
	defer func() { <-o.turn }()
	return o.longest, o.failures > 0
}

// Listen calls back once if the broker answers while a Receive of r waits for a message. That
// Receive follows failed ones, of which longest is the longest. A driver that cannot tell has
// waited for twice as long. The caller calls stop when Receive has returned, and back is not called
// after stop.
func Listen(ctx context.Context, r transport.Receiver, longest time.Duration, back func()) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended, began := make(chan struct{}), time.Now()
	l, knows := r.(transport.Listener)
	go func() {
		defer close(ended)
		for backoff.Sleep(ctx, listenEvery) == nil {
			if knows && l.Listening() || !knows && time.Since(began) > max(2*min(longest, longFailure), silence) {
				back()
				return
			}
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

// criticalOutage is how long receives may fail before the failure is reported.
const criticalOutage = 2 * time.Minute

// Reception is the record of the receives from a queue: whether they fail, and since when. The zero
// value is a queue whose receives succeed. A Reception is safe for concurrent use.
type Reception struct {
	Queue string

	mu       sync.Mutex // guards the rest
	err      error      // of the last receive; nil if the receive succeeded
	since    time.Time  // when the receives began to fail
	reported bool
}

// Note records the error of a receive. Note returns an error to report once in an outage, when the
// outage has lasted for two minutes, and nil otherwise.
func (r *Reception) Note(err error) (outage error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	switch {
	case err == nil:
		r.reported = false
	case r.err == nil:
		r.since = now
	}
	r.err = err
	if err == nil || r.reported || now.Sub(r.since) < criticalOutage {
		return nil
	}
	r.reported = true
	return fmt.Errorf("receiving from %q has been failing for %v: %w", r.Queue, criticalOutage, err)
}

// Failing returns why receives fail, and since when; nil while they succeed.
func (r *Reception) Failing() (since time.Time, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.since, r.err
}

package pump

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

// call is a Receive that is running.
type call struct {
	limit int
	bytes int64 // reserved for what it returns
	began time.Duration
}

// fetch receives while there is room, until ctx ends. Several may run: ask makes them wait where one call is enough.
func (p *Pump) fetch(ctx, work context.Context) {
	for {
		c, ok := p.ask()
		if !ok {
			return
		}
		ds, err := p.receive(ctx, c)
		bad := err != nil || len(ds) == 0
		pausing, windowing := p.arrive(c, p.slots(work, ds), bad)
		if windowing {
			p.giveWindow()
		}
		p.startReady()
		if ctx.Err() != nil {
			return
		}
		p.outage.note(ctx, err)
		if pausing {
			p.pause(ctx, err, p.now()-c.began)
		}
	}
}

// ask waits for room and reserves it for a call. It returns false when the pump stops.
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

// receive calls the receiver, with a bound in bytes where the driver accepts one.
func (p *Pump) receive(ctx context.Context, c call) ([]transport.Delivery, error) {
	if r := p.share.receiver; r != nil {
		return r.ReceiveBytes(ctx, c.limit, c.bytes)
	}
	return p.cfg.Receiver.Receive(ctx, c.limit)
}

// room returns the number of messages to ask for now; 0 for none. Called with mu held.
func (p *Pump) room() int {
	if p.paused || p.quiet != nil || p.calls > 0 && !p.another() {
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

// another reports whether a further Receive may run beside others: the last one was full, and messages need not stay in
// order. Called with mu held.
func (p *Pump) another() bool {
	return p.full && p.calls < p.cfg.Limits.ParallelReceive && p.concurrency > 1
}

// slots returns a slot for each delivery, with a context of its own where there are leases.
func (p *Pump) slots(work context.Context, ds []transport.Delivery) []Slot {
	ss := make([]Slot, len(ds))
	now := p.now()
	for i, d := range ds {
		ss[i] = Slot{pump: p, delivery: d, ctx: work, since: now, at: -1, size: p.share.size(d)}
		if p.renewer != nil {
			ss[i].ctx, ss[i].cancel = context.WithCancelCause(work) //nolint:fatcontext // one for each, not one in the other
		}
	}
	return ss
}

// arrive ends call c and buffers its messages. After a bad call no other starts before the caller has paused. The
// caller must pause if arrive returns pausing, and call giveWindow if it returns windowing.
func (p *Pump) arrive(c call, ss []Slot, bad bool) (pausing, windowing bool) {
	now := p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls--
	p.asked -= c.limit
	p.share.answered(c.bytes)
	p.full = len(ss) >= c.limit || p.share.receiver != nil && 2*sizes(ss) >= c.bytes
	p.take(ss)
	if bad {
		pausing = !p.paused
		p.paused = true
	} else {
		p.demand.measure(now, now-c.began, p.finished, p.full)
	}
	if p.share.windowed() && p.phase == running && !p.windowing && p.windowSize() != p.window {
		p.windowing, windowing = true, true
	}
	p.wake()
	return pausing, windowing
}

// sizes returns the bytes of ss.
func sizes(ss []Slot) int64 {
	var n int64
	for i := range ss {
		n += ss[i].size
	}
	return n
}

// take buffers received messages. Called with mu held.
func (p *Pump) take(ss []Slot) {
	now := p.now()
	for i := range ss {
		p.buffer.push(&ss[i])
		p.hold(&ss[i], now)
		p.share.take(ss[i].size)
	}
}

// pause makes all fetch goroutines wait: longer after each failure; after an empty Receive just long enough not to
// spin.
func (p *Pump) pause(ctx context.Context, err error, took time.Duration) {
	d := backoffMin - took
	if err != nil {
		d = p.outage.pause()
	}
	if d > 0 {
		_ = backoff.Sleep(ctx, d) // the end of ctx is seen by ask
	}
	p.mu.Lock()
	p.paused = false // the caller asks next, and wakes the others
	p.mu.Unlock()
}

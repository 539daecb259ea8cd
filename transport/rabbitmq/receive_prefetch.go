package rabbitmq

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"
)

// consumer is a share of the prefetch. The broker fixes the prefetch count of a consumer when it starts, so a larger prefetch
// takes another consumer.
type consumer struct {
	tag       string
	share     int
	open      int  // deliveries not settled
	cancelled bool // by us
	drained   bool // no more deliveries come
}

const (
	// maxConsumers is how many consumers there are at most before a single one takes their place.
	maxConsumers = 10
	// maxWindow is the largest prefetch that they add up to.
	maxWindow = maxConsumers * math.MaxUint16
	// narrowFor is how long a smaller prefetch has to last before consumers are cancelled for it.
	narrowFor = time.Second
	// unsafeAfter is how long a cancel waits for a moment at which no message is on its way.
	unsafeAfter = 10 * time.Second
)

// prefetch holds the consumers of a channel and decides how many messages the broker may deliver through them before a handler
// is free. Prefetched messages are invisible to other instances, and before RabbitMQ 4.3 each is
// redelivered with a higher delivery count when this process ends or releases it. Fast handlers need a large prefetch nevertheless.
//
// A prefetch is safe for concurrent use. It calls nothing that blocks with its lock held.
type prefetch struct {
	keep time.Duration // how long excess is kept: the grace period; 0 where a release does not count

	mu        sync.Mutex // guards what follows
	changed   sync.Cond  // a consumer or the channel has ended
	target    target
	consumers []*consumer // that the broker delivers to
	leaving   []*consumer // cancelled, with deliveries still open
	started   int         // consumers so far
	narrow    time.Time   // since when the consumers exceed what is wanted; zero while they do not
	pauses    int         // calls that wait for all consumers to end
	closing   bool        // no consumer is to start any more
	ended     bool        // the channel is lost
}

func newPrefetch(keep time.Duration) *prefetch {
	p := &prefetch{keep: keep}
	p.changed.L = &p.mu
	return p
}

// want returns how much of a window of n to ask the broker for.
func (p *prefetch) want(n int, maxHold time.Duration, now time.Time) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.target.of(min(n, maxWindow), maxHold, now)
}

// close says that there are to be no consumers any more.
func (p *prefetch) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closing = true
}

// excess takes out the consumers to be cancelled before the shares can add up to n. It reports whether to look again
// soon, because consumers are to be cancelled later.
func (p *prefetch) excess(n int, now time.Time) (out []*consumer, later bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	total := p.shares()
	if total <= n {
		p.narrow = time.Time{}
	}
	switch {
	case total == n, total < n && len(p.consumers) < maxConsumers:
		return nil, false
	case total > n && !p.mayCancel(total, now):
		return nil, true
	}
	out = p.consumers
	p.consumers = nil
	p.leaving = append(p.leaving, out...)
	return out, false
}

// mayCancel reports whether the consumers can be cancelled, which have the given shares. A quorum queue takes back what
// is on its way to a cancelled consumer, and before RabbitMQ 4.3 that counts. Nothing is on its way when as many messages as the broker
// may deliver have arrived. A prefetch of one pauses between messages, at once.
func (p *prefetch) mayCancel(shares int, now time.Time) bool {
	if p.narrow.IsZero() {
		p.narrow = now
	}
	if p.closing || shares == 1 || p.keep == 0 {
		return true
	}
	lasted := now.Sub(p.narrow)
	if lasted < min(narrowFor, p.keep) {
		return false
	}
	open := 0
	for _, c := range p.consumers {
		open += c.open
	}
	return open == 0 || open >= shares || lasted >= min(unsafeAfter, p.keep)
}

func (p *prefetch) shares() int {
	total := 0
	for _, c := range p.consumers {
		total += c.share
	}
	return total
}

// next is the consumer to start so that the shares add up to n: nil for none. Deliveries of cancelled consumers count as long
// as they are open. Small shares are not worth a consumer.
func (p *prefetch) next(n int, queue string) *consumer {
	p.mu.Lock()
	defer p.mu.Unlock()
	held := 0
	p.leaving = slices.DeleteFunc(p.leaving, func(c *consumer) bool { return c.drained && c.open == 0 })
	for _, c := range p.leaving {
		if c.drained {
			held += c.open
		} else {
			held += c.share
		}
	}
	share := min(n-p.shares()-held, math.MaxUint16)
	if share <= 0 || held > 0 && share < max(1, n/4) || len(p.consumers) == maxConsumers {
		return nil
	}
	p.started++
	c := &consumer{tag: consumerTag(p.started, queue), share: share}
	p.consumers = append(p.consumers, c)
	return c
}

// cancel notes that a consumer is being cancelled.
func (p *prefetch) cancel(c *consumer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.cancelled = true
}

// drain notes that a consumer has ended, and reports whether it was cancelled by us.
func (p *prefetch) drain(c *consumer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.drained = true
	p.changed.Broadcast()
	return c.cancelled
}

// arrive notes a delivery.
func (p *prefetch) arrive(c *consumer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.open++
}

// settle notes that a delivery is settled, which others ran beside it until then, and which handlers have had for
// so long, 0 where they have not. It reports whether a consumer may be started in the place of a cancelled one.
func (p *prefetch) settle(c *consumer, handled time.Duration, beside int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.open--
	p.target.handled(handled, beside)
	return c.cancelled
}

// take notes that handlers took n messages. Where they wanted more, held messages are prefetched or in
// handlers; it reports whether more are to be asked for.
func (p *prefetch) take(n int, more bool, held, window int, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target.use(n, now)
	return more && p.target.runsShort(held, window, now)
}

// pause has the consumers cancelled until awaitPause has returned. It reports false where they are still those of a larger
// prefetch, which has delivered more already.
func (p *prefetch) pause() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shares() > 1 {
		return false
	}
	p.pauses++
	return true
}

func (p *prefetch) paused() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pauses > 0
}

// awaitPause returns when the broker delivers nothing more. A consumer that is cancelled after its delivery was settled may have
// the next one on its way, and the broker would count that.
func (p *prefetch) awaitPause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for !p.ended && p.delivering() {
		p.changed.Wait()
	}
	p.pauses--
}

// awaitEnd waits for the consumers to end.
func (p *prefetch) awaitEnd(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.changed.Broadcast()
	})
	defer stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for !p.ended && p.delivering() && ctx.Err() == nil {
		p.changed.Wait()
	}
}

// idle reports whether there is no consumer that the broker may deliver to.
func (p *prefetch) idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.delivering()
}

// delivering is called with mu held.
func (p *prefetch) delivering() bool {
	return len(p.consumers) > 0 || slices.ContainsFunc(p.leaving, func(c *consumer) bool { return !c.drained })
}

// end says that the channel is lost.
func (p *prefetch) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	p.changed.Broadcast()
}

package rabbitmq

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"time"
)

const (
	// maxConsumers is how many consumers there are at most before a single one replaces them.
	maxConsumers = 10
	// maxTarget is the largest prefetch that they add up to.
	maxTarget = maxConsumers * math.MaxUint16
	// narrowFor is how long a smaller target has to last before consumers are cancelled for it.
	narrowFor = time.Second
	// unsafeAfter is how long a cancel waits for a moment at which no message is on its way.
	unsafeAfter = 10 * time.Second
	// fullTarget is the largest window that is prefetched whole from the start.
	fullTarget = 32
	// fast is the time within which handlers have to take as many messages as the target for it to
	// grow.
	fast = time.Second
	// leastExtra is the least number of messages that are prefetched in the place of held ones.
	leastExtra = 8
	// calm is how long the first target has to be enough before a larger one falls back to it.
	calm = 30 * time.Second
)

// prefetch holds the consumers of a channel and decides how many messages the broker may deliver
// through them before a handler is free. Prefetched messages are invisible to other instances, and
// before RabbitMQ 4.3 each is redelivered with a higher delivery count when this process ends or
// releases it. Fast handlers still need a large prefetch.
//
// The target is how much of the window is prefetched. It doubles when handlers run out of messages,
// either with most of the target prefetched or in handlers, or because they take that many within a
// second. It falls back when that is over. It is smaller where messages would wait so long that the
// broker requeues them.
//
// It is guarded by the lock of the channel.
type prefetch struct {
	grace time.Duration // how long excess is kept; 0 where a release does not count

	size     int           // the target, for an unlimited window
	first    int           // the target at the start
	grow     bool          // the target is to be doubled
	taken    int           // messages that handlers took since that time
	since    time.Time     // when taken was 0 last
	needed   time.Time     // when more than the first target was needed last
	held     int           // deliveries that stay unsettled for long: the target is without them
	extra    int           // prefetched in their place
	handling time.Duration // mean time that a message is in a handler, divided by how many are

	consumers []*consumer // the broker delivers to them
	leaving   []*consumer // cancelled, with deliveries unsettled
	started   int         // consumers so far
	narrow    time.Time   // since when the consumers exceed the target; zero while they do not
	pauses    int         // calls that wait for all consumers to end, while none is to start
	closing   bool        // no consumer is to start any more
}

// consumer is a share of the prefetch. The broker fixes the prefetch count of a consumer when it
// starts, so a larger prefetch takes another consumer.
type consumer struct {
	tag       string // is unique within a channel and names the queue, for lossReason and the tools of the broker
	share     int
	open      int  // deliveries not settled
	cancelled bool // by the driver
	drained   bool // it gets no more deliveries
}

// plan is a change of the consumers.
type plan struct {
	target int
	extra  int         // to be prefetched in the place of held messages
	cancel []*consumer // to be cancelled before others start
	again  bool        // more are to be cancelled later
}

// plan returns how many messages of a window to prefetch, and the consumers to be cancelled for
// that; last says that none is to start any more. The broker requeues messages that are unsettled
// for maxHold; 0 is never.
func (p *prefetch) plan(window int, last bool, maxHold time.Duration, now time.Time) (out plan) {
	if p.closing = p.closing || last; !p.closing && p.pauses == 0 {
		out.target = p.target(min(window, maxTarget), maxHold, now)
		if out.target > 0 {
			out.extra = p.instead(window)
		}
	}
	out.cancel, out.again = p.excess(out.total(), now)
	return out
}

// total is the sum of the shares that the plan asks for.
func (p *plan) total() int { return p.target + p.extra }

// instead returns how many messages to prefetch in the place of held ones: a power of two, because
// another number takes another consumer. It falls to a quarter at once. A window of one asks for
// one message at a time, by a consumer of its own.
func (p *prefetch) instead(window int) int {
	if window == 1 {
		return p.held
	}
	need := 0
	if p.held > 0 {
		need = max(leastExtra, 1<<bits.Len(uint(p.held-1)))
	}
	if need > p.extra || need <= p.extra/4 {
		p.extra = need
	}
	return p.extra
}

// target returns how much of a window of n to prefetch: all of it when little is missing.
func (p *prefetch) target(n int, maxHold time.Duration, now time.Time) int {
	switch {
	case p.grow:
		p.size, p.grow, p.taken, p.since, p.needed = 2*p.size, false, 0, time.Time{}, now
	case now.Sub(p.needed) >= calm:
		p.size = 0
	}
	p.first = max(n/4, fullTarget)
	p.size = max(p.size, p.first)
	if p.size >= n-n/4 {
		p.size = max(p.size, n)
	}
	return min(n, p.size, p.inTime(maxHold))
}

// inTime returns how many messages are handled within half of maxHold, rounded down to a power of
// two, and at least 1.
func (p *prefetch) inTime(maxHold time.Duration) int {
	if maxHold <= 0 || p.handling <= 0 {
		return maxTarget
	}
	n := max(1, min(maxHold/2/p.handling, maxTarget))
	return 1 << (bits.Len64(uint64(n)) - 1)
}

// excess removes the consumers to be cancelled before the shares can add up to n, and reports
// whether others are left.
func (p *prefetch) excess(n int, now time.Time) (cancel []*consumer, again bool) {
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
	cancel = p.consumers
	p.consumers = nil
	p.leaving = append(p.leaving, cancel...)
	for _, c := range cancel {
		c.cancelled = true
	}
	return cancel, false
}

// mayCancel reports whether the consumers, which have the given shares, can be cancelled. A quorum
// queue requeues messages that are on their way to a cancelled consumer, and before RabbitMQ 4.3
// that counts. No message is on its way when as many have arrived as the broker may deliver. A
// prefetch of one pauses between messages, at once.
func (p *prefetch) mayCancel(shares int, now time.Time) bool {
	if p.narrow.IsZero() {
		p.narrow = now
	}
	if p.closing || shares == 1 || p.grace == 0 {
		return true
	}
	lasted := now.Sub(p.narrow)
	if lasted < min(narrowFor, p.grace) {
		return false
	}
	open := 0
	for _, c := range p.consumers {
		open += c.open
	}
	return open == 0 || open >= shares || lasted >= min(unsafeAfter, p.grace)
}

func (p *prefetch) shares() int {
	total := 0
	for _, c := range p.consumers {
		total += c.share
	}
	return total
}

// next returns a consumer to start so that the shares add up to n: nil for none. Unsettled
// deliveries of cancelled consumers count. Small shares are not worth a consumer.
func (p *prefetch) next(n int, queue string) *consumer {
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
	tag := fmt.Sprintf("holdfast-%d:%s", p.started, queue)
	c := &consumer{tag: tag[:min(len(tag), maxShort)], share: share}
	p.consumers = append(p.consumers, c)
	return c
}

// take records that handlers took n messages. Where they wanted more, held messages are prefetched
// or in handlers; it reports whether to ask the broker for more.
func (p *prefetch) take(n int, wanted bool, held, window int, now time.Time) bool {
	if now.Sub(p.since) > fast {
		p.since, p.taken = now, 0
	}
	p.taken += n
	if p.taken >= p.first {
		p.needed = now
	}
	// Where fewer are held and taken, the queue may just be empty.
	if !wanted || held < p.size-p.size/4 && p.taken < p.size {
		return wanted && p.grow
	}
	p.needed = now
	p.grow = p.grow || p.size < window
	return p.grow
}

// settle records that a delivery is settled, with the time that it was in a handler, 0 for never,
// and how many others are. It reports whether a consumer may start in the place of a cancelled one.
func (p *prefetch) settle(c *consumer, handling time.Duration, others int) bool {
	c.open--
	if sample := handling / time.Duration(max(others, 0)+1); p.handling == 0 {
		p.handling = sample
	} else if handling > 0 {
		p.handling += (sample - p.handling) / 8
	}
	return c.cancelled
}

// idle reports whether the broker has no consumer to deliver to.
func (p *prefetch) idle() bool {
	return len(p.consumers) == 0 && !slices.ContainsFunc(p.leaving, func(c *consumer) bool { return !c.drained })
}

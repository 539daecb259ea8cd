package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/transport"
)

// channel is an AMQP channel of a receiver, from its opening to its end. Delivery tags are valid on
// their own channel only, so a delivery keeps its channel and can never settle one of another.
type channel struct {
	receiver  *receiver
	ch        *amqp.Channel
	lost      chan *amqp.Error
	cancelled chan struct{} // a consumer ended that the driver did not cancel
	ackTimer  *time.Timer   // when the next acknowledgement is due
	ticker    *time.Ticker  // when to look for messages that were unsettled or prefetched for long
	consumed  atomic.Bool   // the broker has confirmed a consumer

	mu       sync.Mutex // guards the fields below
	idled    sync.Cond  // a consumer or the channel has ended
	prefetch prefetch
	acks     acks
	waiting  []*delivery // prefetched, in order
	full     bool        // deliveries wait until others are settled
	closing  bool        // to be closed when everything is settled
	ended    error       // why nothing can be settled any more
}

func openChannel(conn *brokerConn, r *receiver) (*channel, error) {
	ch, err := conn.Channel()
	if err != nil {
		return nil, wrap(err, "receive from %q", r.queue)
	}
	c := &channel{
		receiver:  r,
		ch:        ch,
		lost:      ch.NotifyClose(make(chan *amqp.Error, 1)),
		cancelled: make(chan struct{}, 1),
		ackTimer:  time.NewTimer(time.Hour),
		ticker:    time.NewTicker(min(r.of.maxHold/20, calm/3)),
		prefetch:  prefetch{grace: r.of.grace()},
	}
	c.idled.L = &c.mu
	c.acks.ch, c.acks.timer = ch, c.ackTimer
	return c, nil
}

// serve works until the channel is lost, or the receiver is closed and everything is settled.
func (c *channel) serve(ctx context.Context) error {
	defer c.ackTimer.Stop()
	defer c.ticker.Stop()
	err := c.work(ctx)
	if err == nil || errors.Is(err, transport.ErrClosed) {
		return transport.ErrClosed
	}
	return fmt.Errorf("rabbitmq: receive from %q: %w", c.receiver.queue, err)
}

func (c *channel) work(ctx context.Context) error {
	r := c.receiver
	for {
		window, phase := r.limit()
		again, err := c.fit(window, phase >= phaseDraining, time.Now())
		if err != nil {
			return err
		}
		var later <-chan time.Time
		if again {
			later = time.After(min(narrowFor, r.of.grace()))
		}
		if phase == phaseClosed && c.retire() {
			wait := c.unapplied()
			if wait == 0 {
				return c.ch.Close()
			}
			later = time.After(wait)
		}
		select {
		case e := <-c.lost:
			return lossOf(e, "channel")
		case <-c.cancelled:
			return c.cancelledByBroker()
		case <-c.ackTimer.C:
			c.mu.Lock()
			_ = c.acks.due(time.Now()) // it fails only when the channel is lost, which ends serve
			c.mu.Unlock()
		case now := <-c.ticker.C:
			c.watchTimeouts(ctx, now)
		case <-r.adjust:
		case <-later:
		case <-ctx.Done():
			return transport.ErrClosed
		}
	}
}

// fit has the consumers prefetch as much as the window allows and handlers need; last says that
// they are to end. It reports whether to call it again soon.
func (c *channel) fit(window int, last bool, now time.Time) (again bool, err error) {
	c.mu.Lock()
	plan := c.prefetch.plan(window, last, c.receiver.maxHold(), now)
	if !last { // otherwise prefetched messages are handled, or released when the consumers have ended
		c.releaseExcess(window, now)
	}
	c.acks.window, c.closing = plan.target, last
	c.mu.Unlock()
	for _, consumer := range plan.cancel {
		if err := c.ch.Cancel(consumer.tag, false); err != nil {
			return false, fmt.Errorf("cancel a consumer: %w", plain(err))
		}
	}
	c.mu.Lock()
	consumer := c.prefetch.next(plan.total(), c.receiver.queue)
	c.mu.Unlock()
	if consumer != nil {
		err = c.consume(consumer)
	}
	return plan.again, err
}

func (c *channel) consume(consumer *consumer) error {
	if err := c.ch.Qos(consumer.share, 0, false); err != nil {
		return fmt.Errorf("set the prefetch count: %w", plain(err))
	}
	r := c.receiver
	var args amqp.Table
	if r.timeout == timeoutOfMessage {
		args = amqp.Table{consumerTimeout: (r.of.maxHold + r.of.maxHold/4).Milliseconds()}
	}
	in, err := c.ch.Consume(r.queue, consumer.tag, false, false, false, false, args)
	if err != nil {
		if isCode(err, amqp.PreconditionFailed) && strings.Contains(err.Error(), consumerTimeout) {
			r.timeout = timeoutNever // only classic queues refuse the argument
		}
		return plain(err)
	}
	c.consumed.Store(true)
	if !r.of.tasks.Go(func() { c.collect(consumer, in) }) {
		return transport.ErrClosed
	}
	return nil
}

// cancelledByBroker closes a channel that the broker has stopped delivering to.
func (c *channel) cancelledByBroker() error {
	if c.ch.IsClosed() {
		return lossOf(<-c.lost, "channel")
	}
	c.mu.Lock()
	_ = c.acks.flush(time.Now().Add(lateAck)) // a message whose acknowledgement cannot be written is redelivered
	c.mu.Unlock()
	err := errors.New("the broker cancelled the consumer: the queue was deleted or has moved, " +
		"or a message was unsettled for too long")
	return errors.Join(err, c.ch.Close())
}

// end makes every later settlement fail with err.
func (c *channel) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked(err)
}

// endLocked is end. Called with mu held.
func (c *channel) endLocked(err error) {
	if c.ended == nil {
		c.ended = err
		if !errors.Is(err, transport.ErrClosed) {
			c.remember()
		}
	}
	c.waiting = nil
	c.idled.Broadcast()
}

// unapplied returns how long the channel must stay open: see [settler].
func (c *channel) unapplied() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.acks.unapplied(time.Now())
}

// finish writes pending acknowledgements and ends the channel. The connection must stay open until
// they are applied.
func (c *channel) finish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	// A message whose acknowledgement cannot be written is redelivered.
	_ = c.acks.flush(time.Now().Add(lateAck))
	c.endLocked(fmt.Errorf("%w: %w", transport.ErrClosed, transport.ErrLeaseLost))
}

// retire releases the prefetched messages, and reports whether everything is settled. It waits for
// the consumers to end first: the broker would deliver the same messages to them again.
func (c *channel) retire() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.prefetch.idle() {
		return false
	}
	c.release(func(int, *delivery) bool { return true })
	return c.acks.open == 0 && len(c.acks.pending) == 0
}

// collect takes the deliveries of a consumer until it ends.
func (c *channel) collect(from *consumer, in <-chan amqp.Delivery) {
	for d := range in {
		c.push(from, &d)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	from.drained = true
	c.idled.Broadcast()
	if from.cancelled {
		signal(c.receiver.adjust)
	} else {
		signal(c.cancelled)
	}
}

// awaitIdle returns when the broker delivers nothing more, or ctx ends.
func (c *channel) awaitIdle(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.idled.Broadcast()
	})
	defer stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.ended == nil && !c.prefetch.idle() && ctx.Err() == nil {
		c.idled.Wait()
	}
}

// awaitPause ends a pause when the broker delivers nothing more. A consumer that is cancelled after
// its delivery was settled may have the next one on its way, which the broker would count.
func (c *channel) awaitPause() {
	c.awaitIdle(context.Background())
	c.mu.Lock()
	defer c.mu.Unlock()
	c.prefetch.pauses--
	signal(c.receiver.adjust)
}

// push has a delivery wait for a handler, unless it needs none.
func (c *channel) push(from *consumer, in *amqp.Delivery) {
	now := time.Now()
	r := c.receiver
	d := &delivery{
		arrivedAt: now, attempt: attemptOf(in, r.of.queueType), unnamed: isUnnamed(in),
		channel: c, from: from, tag: in.DeliveryTag,
	}
	d.message = decode(in)
	completed := in.Redelivered && r.of.redelivered.takeCompleted(r.queue, &d.message)
	if completed {
		r.of.log.Info("a message was redelivered whose acknowledgement was lost: it is acknowledged without being handled again",
			"queue", r.queue, "message", d.message.ID)
	}
	done := completed || expired(&d.message, now)
	c.mu.Lock()
	c.acks.add(d)
	from.open++
	if !done {
		if c.waiting = append(c.waiting, d); len(c.waiting) == 1 {
			signal(r.ready)
		}
	}
	c.mu.Unlock()
	if done {
		// When this acknowledgement is lost too, the message is redelivered and acknowledged again.
		_ = d.settle(d.acknowledge)
	}
}

// take returns up to limit of the waiting deliveries, and whether there are more. A smaller window
// is obeyed at once, though the broker may still deliver by the former one. With a window of 1 the
// prefetch is to pause, unless the consumers are still those of a larger one, which has delivered
// more already.
func (c *channel) take(limit, window int) (ds []transport.Delivery, more, pausing bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(limit, len(c.waiting), window-c.inHandlers())
	now := time.Now()
	if c.prefetch.take(max(n, 0), len(c.waiting) < limit, c.acks.open-c.prefetch.held+len(c.acks.pending), window, now) {
		signal(c.receiver.adjust)
	}
	if n <= 0 {
		c.full = len(c.waiting) > 0
		return nil, false, false
	}
	if pausing = window == 1 && c.prefetch.shares() <= 1; pausing {
		c.prefetch.pauses++
		signal(c.receiver.adjust)
	}
	ds = make([]transport.Delivery, n)
	for i, d := range c.waiting[:n] {
		d.receivedAt = now
		ds[i] = d
	}
	clear(c.waiting[:n])
	c.waiting = c.waiting[n:]
	return ds, len(c.waiting) > 0, pausing
}

// inHandlers returns the number of deliveries that count against the window. It is called with mu
// held.
func (c *channel) inHandlers() int { return c.acks.open - len(c.waiting) - c.prefetch.held }

// hold takes a delivery out of the window. Called with mu held.
func (c *channel) hold(d *delivery) {
	d.held = true
	c.prefetch.held++
	if c.full {
		c.full = false
		signal(c.receiver.ready)
	}
	signal(c.receiver.adjust)
}

// settled records that a delivery is settled, and wakes the goroutines that this may concern.
// Called with mu held.
func (c *channel) settled(d *delivery, state settlement) {
	d.state = state
	c.acks.remove(d)
	var handling time.Duration
	switch {
	case d.held:
		d.held = false
		c.prefetch.held--
		signal(c.receiver.adjust)
	case !d.receivedAt.IsZero():
		handling = time.Since(d.receivedAt)
	}
	replaced := c.prefetch.settle(d.from, handling, c.inHandlers())
	if c.full {
		c.full = false
		signal(c.receiver.ready)
	}
	if replaced || c.closing && c.acks.open == 0 {
		signal(c.receiver.adjust)
	}
}

// releaseExcess releases the messages that are prefetched beyond the window. It waits for the
// consumers to end: the broker would deliver the same messages to them again. Called with mu held.
func (c *channel) releaseExcess(window int, now time.Time) {
	if c.prefetch.idle() {
		room, grace := window-c.inHandlers(), c.receiver.of.grace()
		c.release(func(i int, d *delivery) bool { return i >= room && now.Sub(d.arrivedAt) >= grace })
	}
}

// release returns the prefetched messages to the queue that pick selects by their index. Called
// with mu held.
func (c *channel) release(pick func(int, *delivery) bool) {
	kept := c.waiting[:0]
	for i, d := range c.waiting {
		if !pick(i, d) {
			kept = append(kept, d)
			continue
		}
		c.settled(d, stateSettled)
		// When this fails, the channel is lost and the message is redelivered.
		_ = c.acks.requeue(d.tag)
	}
	clear(c.waiting[len(kept):])
	c.waiting = kept
}

package asb

import (
	"context"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

// drainTimeout bounds the end of a link, with what still comes by it.
const drainTimeout = closeTimeout

// closing ends a link. A message that the service sends while a link ends would stay locked until its lock runs out, so first
// nothing may be left that was asked for. These are its states; each returns the next one, and the drain deadline ends each:
//
//	arriving   of a busy queue, what was asked for comes soon, and the library releases it
//	looking    is the queue empty?
//	bouncing   it is not: what was asked for comes and is released, one after the other
//	catching   it is: what was asked for does not come; what does while the link ends is received and released
//	ending     the link is ended
type closing struct {
	*link
	ctx    context.Context //nolint:containedctx // the drain deadline
	rcv    *azservicebus.Receiver
	of     *client
	busy   bool
	caught sync.WaitGroup
}

// closingState does what is to do in a state and returns the next, nil after the last.
type closingState func() closingState

// close lets no more messages come, within drainTimeout.
func (l *link) close() {
	l.mu.Lock()
	rcv, cl := l.rcv, l.of
	l.mu.Unlock()
	if rcv == nil || !cl.alive() {
		return
	}
	ctx, cancel := context.WithTimeout(cl.ctx, drainTimeout)
	defer cancel()
	// The library releases what came late, and waits a minute for a silent peer to answer.
	stop := context.AfterFunc(ctx, func() { _ = cl.socket.Close() })
	defer stop()
	c := &closing{link: l, ctx: ctx, rcv: rcv, of: cl, busy: l.rate.busy(time.Now())}
	state := closingState(c.ending)
	if l.left > 0 {
		state = c.arriving
	}
	for state != nil {
		state = state()
	}
	c.caught.Wait()
}

func (c *closing) arriving() closingState {
	if c.busy {
		c.sleep(busyTimeout)
	}
	return c.looking
}

func (c *closing) looking() closingState {
	began := time.Now()
	settler, err := c.receiver.settler.on(c.of)
	if err != nil {
		return c.ending
	}
	found, err := look(c.ctx, settler, 0, 1)
	switch {
	case err == nil && len(found) > 0:
		trip := max(time.Since(began), time.Millisecond)
		return func() closingState { return c.bouncing(trip) }
	case err == nil && !c.busy:
		return c.catching
	}
	return c.ending
}

// bouncing waits for a round trip and its answer for each message that was asked for.
func (c *closing) bouncing(trip time.Duration) closingState {
	c.sleep(min(bounceTimeout, time.Duration(2*c.left+2)*trip))
	return c.ending
}

// catching receives while the link is being ended: that ends the receive, and it has what came until then.
func (c *closing) catching() closingState {
	c.caught.Go(func() {
		defer func() { _ = recover() }() // as in call; the locks run out
		msgs, err := c.rcv.ReceiveMessages(c.ctx, c.left, &azservicebus.ReceiveMessagesOptions{TimeAfterFirstMessage: drainTimeout})
		if err != nil {
			return
		}
		for _, d := range c.receiver.hand(msgs, c.of, c.rcv) {
			c.release(d)
		}
	})
	return c.ending
}

// release returns a message to the queue. Where that fails its lock runs out.
func (c *closing) release(d transport.Delivery) { _ = d.Release(c.ctx) }

func (c *closing) ending() closingState {
	_ = c.rcv.Close(c.ctx) // what is left ends with the session
	return nil
}

// sleep waits, or until the drain deadline.
func (c *closing) sleep(d time.Duration) { _ = backoff.Sleep(c.ctx, d) }

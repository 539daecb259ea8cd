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

// closing ends a link. A message that the service sends while a link ends stays locked until its lock expires, so the
// link first waits for the messages that were asked for. Each of its states returns the next one; the drain deadline
// ends each:
//
//	arriving   a busy queue delivers them soon, and the library releases them
//	looking    browses the queue
//	bouncing   the queue has messages: those asked for come and are released, one after the other
//	catching   the queue is empty: messages that come while the link ends are received and released
//	ending     ends the link
type closing struct {
	*link
	ctx    context.Context //nolint:containedctx // the drain deadline
	rcv    *azservicebus.Receiver
	of     *client
	busy   bool
	caught sync.WaitGroup
}

// closingState does the work of a state and returns the next state, nil after the last.
type closingState func() closingState

// close ends the link within drainTimeout.
func (l *link) close() {
	l.mu.Lock()
	rcv, cl := l.rcv, l.of
	l.mu.Unlock()
	if rcv == nil || !cl.alive() {
		return
	}
	ctx, cancel := context.WithTimeout(cl.ctx, drainTimeout)
	defer cancel()
	// The library releases late messages, and waits a minute for a peer that does not answer.
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

// bouncing waits two round trips for each message that was asked for.
func (c *closing) bouncing(trip time.Duration) closingState {
	c.sleep(min(bounceTimeout, time.Duration(2*c.left+2)*trip))
	return c.ending
}

// catching receives while the link ends, which ends the receive. The receive returns the messages that came until then.
func (c *closing) catching() closingState {
	c.caught.Go(func() {
		defer func() { _ = recover() }() // as in call; the locks expire
		msgs, err := c.rcv.ReceiveMessages(c.ctx, c.left, &azservicebus.ReceiveMessagesOptions{TimeAfterFirstMessage: drainTimeout})
		if err != nil {
			return
		}
		for _, d := range c.receiver.deliveries(msgs, c.of, c.rcv) {
			c.release(d)
		}
	})
	return c.ending
}

// release returns a message to the queue. On failure its lock expires.
func (c *closing) release(d transport.Delivery) { _ = d.Release(c.ctx) }

func (c *closing) ending() closingState {
	_ = c.rcv.Close(c.ctx) // an error leaves it to the client
	return nil
}

// sleep waits until the drain deadline at most.
func (c *closing) sleep(d time.Duration) { _ = backoff.Sleep(c.ctx, d) }

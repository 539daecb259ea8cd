package asb

import (
	"context"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/holdfast-go/holdfast/internal/backoff"
)

// drainTimeout bounds the end of a link, with what still comes by it.
const drainTimeout = closeTimeout

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
	var caught sync.WaitGroup
	if l.left > 0 && l.drain(ctx) {
		caught.Go(func() { l.catch(ctx, cl, rcv) })
	}
	_ = rcv.Close(ctx) // an error leaves it to the client
	caught.Wait()
}

// drain waits for the messages that the link has asked for: one that the service sends while a link ends stays locked
// until its lock expires. It reports whether the queue is empty, so that messages may come while the link ends.
func (l *link) drain(ctx context.Context) (empty bool) {
	busy := l.rate.busy(time.Now())
	if busy { // they come soon, and the library releases them
		_ = backoff.Sleep(ctx, busyTimeout)
	}
	began := time.Now()
	found, err := l.receiver.supervisor.browse(ctx, l.receiver.settler.on, 0, 1)
	if err == nil && len(found) > 0 { // they come and are released one after the other, in two round trips each
		trip := max(time.Since(began), time.Millisecond)
		_ = backoff.Sleep(ctx, min(bounceTimeout, time.Duration(2*l.left+2)*trip))
	}
	return err == nil && len(found) == 0 && !busy
}

// catch receives until the link has ended, and releases what came. On failure the locks expire.
func (l *link) catch(ctx context.Context, cl *client, rcv *azservicebus.Receiver) {
	defer func() { _ = recover() }() // as in call
	msgs, err := rcv.ReceiveMessages(ctx, l.left, &azservicebus.ReceiveMessagesOptions{TimeAfterFirstMessage: drainTimeout})
	if err != nil {
		return
	}
	for _, d := range l.receiver.deliveries(msgs, cl, rcv) {
		_ = d.Release(ctx)
	}
}

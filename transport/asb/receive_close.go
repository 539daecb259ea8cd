package asb

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
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

// retire closes a receiver of the library, whose link has ended: by itself the library asks the
// ended link for messages again and again, without a pause. Deliveries that came by the link are
// settled by their tokens.
func (r *receiver) retire(rcv *azservicebus.Receiver) {
	r.mu.Lock()
	r.retired[rcv] = struct{}{}
	r.mu.Unlock()
	r.of.tasks.Go(func() { r.closeLibrary(rcv) })
	r.forgetRetired(rcv)
}

// forgetRetired forgets a retired receiver if no delivery came by it any more.
func (r *receiver) forgetRetired(rcv *azservicebus.Receiver) {
	r.mu.Lock()
	_, over := r.retired[rcv]
	for d := range r.inFlight {
		if !over {
			break
		}
		over = d.rcv != rcv
	}
	if over {
		delete(r.retired, rcv)
	}
	r.mu.Unlock()
}

// isRetired reports whether the link of rcv has ended.
func (r *receiver) isRetired(rcv *azservicebus.Receiver) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, is := r.retired[rcv]
	return is
}

// replaceSettler lets the next request by a lock's token attach a new link. Requests of other
// deliveries may still wait for answers over the former link, for settleTimeout at most.
func (r *receiver) replaceSettler(rcv *azservicebus.Receiver) {
	if !r.settler.forget(rcv) {
		return // another request has
	}
	r.of.tasks.Go(func() {
		_ = backoff.Sleep(r.of.ctx, 2*settleTimeout)
		r.closeLibrary(rcv)
	})
}

func (r *receiver) closeLibrary(rcv *azservicebus.Receiver) {
	ctx, cancel := context.WithTimeout(r.of.ctx, drainTimeout)
	defer cancel()
	_ = rcv.Close(ctx) // an error leaves it to the client
}

// drain waits for the messages that the link has asked for: one that the service sends while a link
// ends stays locked until its lock expires. It reports whether the queue is empty, so that messages
// may come while the link ends.
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

// locks records whether the service's delivery counts are exact. They are if a lock outlives its
// link: then a delivery whose process or connection ends is counted when its lock expires.
// Microsoft's documentation says that locks end with their connection, which may count or not;
// users of the service report that they do not end. So a process tests it with its first message:
// it ends the message's link and renews the lock.
type locks struct {
	testing sync.Mutex // held while a lock is tested
	rule    atomic.Int32
}

// Values of locks.rule.
const (
	untested int32 = iota
	outlive        // locks outlive their link
	ended          // locks end with their link
)

// test finds out the rule with deliveries that the link has just received. It returns those that
// are still locked.
func (l *link) test(ctx context.Context, ds []transport.Delivery) []transport.Delivery {
	r := l.receiver
	if r.dead || r.of.endpoint == "" { // dead letters are not counted, and a tool does not count
		return ds
	}
	k := &r.of.locks
	if k.rule.Load() == untested && k.testing.TryLock() {
		if k.rule.Load() == untested && len(r.unsettled()) == len(ds) { // no other delivery is affected
			ds = l.renewUnlinked(ctx, ds)
		}
		k.testing.Unlock()
	}
	for _, d := range ds {
		d.(*delivery).exact = k.rule.Load() == outlive //nolint:errcheck // the driver's own
	}
	return ds
}

// renewUnlinked ends the link and renews the locks of its deliveries. It returns those that are
// still locked.
func (l *link) renewUnlinked(
	ctx context.Context, ds []transport.Delivery,
) (locked []transport.Delivery) {
	l.unlink(ctx)
	r := l.receiver
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	for _, d := range ds {
		err := r.renew(ctx, d)
		switch {
		case err == nil:
			r.of.locks.rule.Store(outlive)
		case errors.Is(err, transport.ErrLeaseLost):
			r.of.locks.rule.Store(ended)
			continue
		}
		locked = append(locked, d)
	}
	if r.of.locks.rule.Load() == ended {
		r.of.log.WarnContext(ctx, "the service ends the lock of a message with its link, so attempts are not counted exactly: "+
			"a message that crashes the process may not be found", "queue", r.queue, "advice", "watch the restarts of the process")
	}
	return locked
}

// unlink ends the library's receiver. The next receive creates another.
func (l *link) unlink(ctx context.Context) {
	l.mu.Lock()
	rcv := l.rcv
	l.rcv = nil
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = rcv.Close(ctx) // an error leaves it to the client
}

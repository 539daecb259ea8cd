package asb

import (
	"context"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/holdfast-go/holdfast/internal/backoff"
)

// leastLock is the service's shortest lock duration. A message seems to have less if it travelled for long, or if this
// machine's clock is ahead.
const leastLock = 5 * time.Second

// mindLock renews the locks of a queue if they are shorter than the lease in Limits, by the first message: without the
// right to manage the namespace the driver learns their duration no earlier. If the service's clock differs from this
// machine's, it may renew without need, or not notice.
func (r *receiver) mindLock(raw *azservicebus.ReceivedMessage) {
	if raw.LockedUntil == nil {
		return
	}
	lock := time.Until(*raw.LockedUntil)
	if lock > r.conn.lease*3/4 {
		return
	}
	r.short.Do(func() {
		lock = max(lock, leastLock)
		r.conn.log.Warn("a queue has shorter locks than the transport's LockDuration: the driver renews them itself, which takes more requests",
			"queue", r.queue, "lock", lock.Round(time.Second), "expected", r.conn.lease, "advice", "set LockDuration to that of the queue")
		r.conn.tasks.Go(func() { r.keep(lock) })
	})
}

// keep renews the locks in flight until the receiver is closed and all are settled or lost.
func (r *receiver) keep(lock time.Duration) {
	for backoff.Sleep(r.conn.ctx, lock/3) == nil {
		out := r.unsettled()
		if len(out) == 0 && r.ctx.Err() != nil {
			return
		}
		ctx, cancel := context.WithTimeout(r.conn.ctx, lock/2)
		r.Renew(ctx, out) // the settlement reports a lost lock
		cancel()
	}
}

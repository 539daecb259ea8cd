package asb

import (
	"context"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/holdfast-go/holdfast/internal/backoff"
)

// shortLocks renews by itself where a queue has shorter locks than the endpoint was told when it connected: who may not manage the
// namespace cannot look them up, and sees them only in the first message. Clocks that differ have it renew without need, or,
// when ours is late, fail to notice.
type shortLocks struct {
	once sync.Once
}

// leastLock is the shortest lock of a queue that the service offers. Less is seen of a message that was on its way for long, or by a clock
// that is ahead.
const leastLock = 5 * time.Second

// mind looks at how long a message that has just come is locked.
func (k *shortLocks) mind(r *receiver, raw *azservicebus.ReceivedMessage) {
	if raw.LockedUntil == nil {
		return
	}
	lock := time.Until(*raw.LockedUntil)
	if lock > r.conn.lease*3/4 {
		return
	}
	k.once.Do(func() {
		lock = max(lock, leastLock)
		r.conn.log.Warn("a queue has shorter locks than the endpoint reckons with: the driver renews them itself, which takes more requests",
			"queue", r.queue, "lock", lock.Round(time.Second), "reckoned", r.conn.lease, "advice", "set LockDuration to what the queue has")
		r.conn.start(func() { r.keep(lock) })
	})
}

// keep renews all that is out, until the receiver is closed and has nothing out any more.
func (r *receiver) keep(lock time.Duration) {
	for backoff.Sleep(r.conn.ctx, lock/3) == nil {
		out := r.outstanding()
		if len(out) == 0 && r.ctx.Err() != nil {
			return
		}
		ctx, cancel := context.WithTimeout(r.conn.ctx, lock/2)
		r.Renew(ctx, out) // a lock that is lost is told of by the settle
		cancel()
	}
}

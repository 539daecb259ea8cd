package asb

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/holdfast-go/holdfast/transport"
)

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
	if r.dead || r.conn.endpoint == "" { // dead letters are not counted, and a tool does not count
		return ds
	}
	k := &r.conn.locks
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
func (l *link) renewUnlinked(ctx context.Context, ds []transport.Delivery) (locked []transport.Delivery) {
	l.unlink(ctx)
	r := l.receiver
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	for _, d := range ds {
		err := r.renew(ctx, d)
		switch {
		case err == nil:
			r.conn.locks.rule.Store(outlive)
		case errors.Is(err, transport.ErrLeaseLost):
			r.conn.locks.rule.Store(ended)
			continue
		}
		locked = append(locked, d)
	}
	if r.conn.locks.rule.Load() == ended {
		r.conn.log.WarnContext(ctx, "the service ends the lock of a message with its link, so attempts are not counted exactly: "+
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

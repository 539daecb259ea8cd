package asb

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/holdfast-go/holdfast/transport"
)

// locks says whether the service's delivery counts are exact. They are where a lock outlives its link: then a delivery whose process
// or connection ends is counted when its lock runs out. Microsoft's documentation says that locks end with their connection, which
// may count or not; users of the service report that they do not end. So a process finds out with its first message: it ends the link that the
// message came by, and renews the lock.
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

// test finds the rule out with deliveries that have just come by a link. It returns those that are still locked.
func (l *link) test(ctx context.Context, ds []transport.Delivery) []transport.Delivery {
	r := l.receiver
	if r.dead || r.conn.endpoint == "" { // dead letters are not counted, and a tool does not care
		return ds
	}
	k := &r.conn.locks
	if k.rule.Load() == untested && k.testing.TryLock() {
		if k.rule.Load() == untested && r.held() == len(ds) { // else others would be affected
			ds = l.renewUnlinked(ctx, ds)
		}
		k.testing.Unlock()
	}
	for _, d := range ds {
		d.(*delivery).exact = k.rule.Load() == outlive //nolint:errcheck // all of ours are
	}
	return ds
}

// renewUnlinked ends the link and renews the locks of what came by it.
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
		r.conn.log.WarnContext(ctx, "the service ends the lock of a message with the link that it came by, so attempts are not counted exactly: a message that ends the process is not always found",
			"queue", r.queue, "advice", "watch the restarts of the process")
	}
	return locked
}

// unlink ends the library's receiver. The next receive has another.
func (l *link) unlink(ctx context.Context) {
	l.mu.Lock()
	rcv := l.rcv
	l.rcv = nil
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = rcv.Close(ctx) // what is left ends with the session
}

package tablequeue

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

var (
	_ transport.Receiver     = (*receiver)(nil)
	_ transport.ByteReceiver = (*receiver)(nil)
	_ transport.Renewer      = (*receiver)(nil)
	_ transport.Listener     = (*receiver)(nil)
)

// The pauses between two polls of an empty queue: they double from the first to the longest. While
// notifications arrive, polling finds only rows that they miss.
const (
	firstPause        = 2 * time.Millisecond
	maxPause          = 500 * time.Millisecond
	firstPauseHearing = 32 * time.Millisecond
	maxPauseHearing   = time.Second
)

// receiver claims rows of one queue.
type receiver struct {
	conn  *Conn
	queue string
	woken chan struct{} // holds a token when there may be new rows
	turn  chan struct{} // holds a token while a Receive waits: one polls for all
	done  chan struct{} // closed by Close
	once  sync.Once
	rows  sync.Pool // of *[]Claimed

	direct  direct
	claimed atomic.Int64 // when the last claim began, in nanoseconds since 1970; 0: the next Receive claims
	more    atomic.Bool  // the last claim has left rows
	heard   atomic.Bool  // the database has answered the last claim

	mu      sync.Mutex // guards orphans
	orphans []int64    // leases of claims whose answer was lost
}

// Close implements [transport.Receiver].
func (r *receiver) Close() error {
	r.once.Do(func() {
		r.conn.wakes.remove(r)
		close(r.done)
	})
	return nil
}

// Listening implements [transport.Listener].
func (r *receiver) Listening() bool { return r.heard.Load() }

// Receive implements [transport.Receiver]. It returns direct rows, or claims at once. While the
// queue is empty it claims again after pauses that grow, when a row is due, and when it is woken.
func (r *receiver) Receive(ctx context.Context, limit int) ([]transport.Delivery, error) {
	return r.ReceiveBytes(ctx, limit, 0)
}

// ReceiveBytes implements [transport.ByteReceiver]: the claim itself is bounded.
func (r *receiver) ReceiveBytes(ctx context.Context, limit int, maxBytes int64) ([]transport.Delivery, error) {
	limit = min(limit, maxReceive)
	if ds := r.receiveDirect(ctx, limit, maxBytes); len(ds) > 0 {
		return ds, nil
	}
	ds, _, err := r.claim(ctx, limit, maxBytes)
	if len(ds) > 0 || err != nil {
		return ds, err
	}
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-r.done:
		return nil, transport.ErrClosed
	}
	return r.poll(ctx, limit, maxBytes)
}

func (r *receiver) poll(ctx context.Context, limit int, maxBytes int64) ([]transport.Delivery, error) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for pause := time.Duration(0); ; {
		if ds := r.takeDirect(limit, maxBytes); len(ds) > 0 {
			return ds, nil
		}
		ds, next, err := r.claim(ctx, limit, maxBytes)
		if len(ds) > 0 || err != nil {
			return ds, err
		}
		first, most := firstPause, maxPause
		if r.conn.wakes.hearing.Load() {
			first, most = firstPauseHearing, maxPauseHearing
		}
		pause = min(max(first, 2*pause), most)
		wait := pause
		if next > 0 { // a little later, for clocks that are coarser than the database's
			wait = min(pause, next+time.Millisecond)
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-r.woken:
		case <-r.direct.ready:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-r.conn.life.Done():
			return nil, transport.ErrClosed
		case <-r.done:
			return nil, transport.ErrClosed
		}
	}
}

package tablequeue

import (
	"cmp"
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

// claimEvery is the time after which a receiver that takes direct rows claims nevertheless: other
// rows may wait.
const claimEvery = 100 * time.Millisecond

// directLease is the longest lease of a direct row. It is renewed as those of claimed rows are, but
// it begins with the insert. When this process ends, another one receives the row after that time.
const directLease = 10 * time.Second

// maxDirectBytes bounds the bodies of direct rows. The first one has room whatever its size.
const maxDirectBytes = 64 << 20

// direct has rows that [Conn.Store] or a transaction of [Conn.BeginStore] has inserted for a
// receiver of this Conn. They are inserted with a lease of the receiver, and need no claim. When
// there is no room for a row, it is inserted without a lease, and claimed as others are.
type direct struct {
	ready chan struct{} // holds a token when there may be rows

	mu   sync.Mutex // guards the rest
	most int        // the window of the receiver; 0: no row is direct
	used int        // rows that are being inserted or wait
	size int64      // of their bodies
	rows []directRow
}

// directRow is a row that waits for a Receive.
type directRow struct {
	delivery *delivery
	since    time.Time // when its lease began, or before
}

// reserve makes room for one row with a body of size bytes, and reports false where there is none.
func (h *direct) reserve(size int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.used >= h.most || h.used > 0 && h.size+int64(size) > maxDirectBytes {
		return false
	}
	h.used++
	h.size += int64(size)
	return true
}

// free gives up the room of n rows that were not inserted, whose bodies have size bytes.
func (h *direct) free(n int, size int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.used -= n
	h.size -= size
}

func (h *direct) add(row directRow) {
	h.mu.Lock()
	h.rows = append(h.rows, row)
	h.mu.Unlock()
	signal(h.ready)
}

// take removes rows from h: fresh ones in the order of their seq, up to the bounds, and all whose
// leases began before oldest. The first fresh one is taken whatever its size.
func (h *direct) take(limit int, maxBytes int64, oldest time.Time) (fresh []transport.Delivery, old []*delivery) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.rows) == 0 {
		return nil, nil
	}
	slices.SortFunc(h.rows, func(a, b directRow) int { return cmp.Compare(a.delivery.lease.Seq, b.delivery.lease.Seq) })
	n, bytes := 0, int64(0)
	for _, row := range h.rows {
		d, size := row.delivery, int64(len(row.delivery.msg.Body))
		if row.since.Before(oldest) {
			old = append(old, d)
		} else {
			bytes += size
			if len(fresh) == limit || len(fresh) > 0 && maxBytes > 0 && bytes > maxBytes {
				break
			}
			fresh = append(fresh, d)
		}
		n++
		h.size -= size
	}
	h.rows = slices.Delete(h.rows, 0, n)
	h.used -= n
	if len(h.rows) > 0 {
		signal(h.ready)
	}
	return fresh, old
}

// Window implements [transport.Receiver]: at most n messages that this process stores for the queue
// wait for Receive. There is no prefetch from the database.
func (r *receiver) Window(n int) {
	if !r.conn.cfg.LeasedInserts {
		return
	}
	r.direct.mu.Lock()
	defer r.direct.mu.Unlock()
	r.direct.most = n
}

// receiveDirect returns direct rows, and waits for them until it is time to claim. Then it returns
// none. While claims leave rows, claims and direct rows take turns.
func (r *receiver) receiveDirect(ctx context.Context, limit int, maxBytes int64) []transport.Delivery {
	if !r.takesDirect() {
		return nil
	}
	if r.more.Load() && r.claimed.Swap(0) != 0 {
		return r.takeDirect(limit, maxBytes)
	}
	wait := time.Until(time.Unix(0, r.claimed.Load()).Add(claimEvery))
	timer := time.NewTimer(min(wait, claimEvery)) // the clock may have been set back
	defer timer.Stop()
	for {
		select { // before rows are taken, so that others do not wait for ever
		case <-timer.C:
			return nil
		case <-r.woken:
			return nil
		default:
		}
		if ds := r.takeDirect(limit, maxBytes); len(ds) > 0 {
			return ds
		}
		select {
		case <-r.direct.ready:
		case <-timer.C:
			return nil
		case <-r.woken:
			return nil
		case <-ctx.Done():
			return nil
		case <-r.conn.life.Done():
			return nil
		case <-r.done:
			return nil
		}
	}
}

func (r *receiver) takesDirect() bool {
	r.direct.mu.Lock()
	defer r.direct.mu.Unlock()
	return r.direct.most > 0
}

// takeDirect takes direct rows. Those whose lease may end soon are released, for a claim of any
// process.
func (r *receiver) takeDirect(limit int, maxBytes int64) []transport.Delivery {
	fresh, old := r.direct.take(limit, maxBytes, time.Now().Add(-r.conn.directLease()/2))
	if len(old) > 0 {
		units := make([]*Unit, len(old))
		for i, d := range old {
			units[i] = &Unit{Verb: Release, Queue: r.queue, Lease: d.lease}
		}
		ctx, cancel := context.WithTimeout(r.conn.work, maxWait)
		defer cancel()
		// Where that fails, they are claimed when their leases end.
		_ = r.conn.call(ctx, nil, func(ctx context.Context) error { return r.conn.store.Flush(ctx, units) })
	}
	return fresh
}

func (c *Conn) directLease() time.Duration { return min(c.cfg.Lease, directLease) }

// leasedRows are the rows of one unit that are inserted with a lease.
type leasedRows struct {
	to    *receiver
	began time.Time
	rows  int
	size  int64 // of their bodies
}

// leaseRows gives rows of u a lease of the receiver of their queue, as far as the receiver has
// room. Either deliver or cancel is called on the result.
func (c *Conn) leaseRows(u *Unit) (h leasedRows) {
	if !c.cfg.LeasedInserts {
		return h
	}
	for i := range u.Rows {
		row := &u.Rows[i]
		if row.Timed() || row.Named() || row.Published {
			continue
		}
		if h.to == nil {
			if h.to = c.wakes.receiver(row.Queue); h.to == nil {
				return h
			}
			h.began = time.Now()
			u.LeaseFor, u.LeaseOwner = c.directLease(), c.owner
		}
		if row.Queue != h.to.queue || !h.to.direct.reserve(len(row.Body)) {
			continue
		}
		row.Lease = 1 + rand.Int64N(1<<62)
		h.rows++
		h.size += int64(len(row.Body))
	}
	return h
}

// deliver gives its receiver the rows that u has inserted for ops.
func (h leasedRows) deliver(u *Unit, ops []transport.Operation) {
	left, size := h.rows, h.size
	for i := range u.Rows {
		row := &u.Rows[i]
		if row.Lease == 0 || row.Seq == 0 {
			continue
		}
		left--
		size -= int64(len(row.Body))
		m := ops[row.Op].Message
		headers := m.Headers.Clone()
		if m.ID != "" && headers.Get(header.MessageID) == "" {
			headers.Set(header.MessageID, m.ID)
		}
		d := h.to.newDelivery(Lease{Seq: row.Seq, ID: row.Lease}, 1, transport.Message{
			ID: m.ID, NativeID: strconv.FormatInt(row.Seq, 10), Headers: headers, Body: m.Body,
		})
		h.to.direct.add(directRow{delivery: d, since: h.began})
	}
	if left > 0 {
		h.to.direct.free(left, size)
	}
}

// cancel gives up the room of rows that were not inserted, or perhaps were.
func (h leasedRows) cancel() {
	if h.rows > 0 {
		h.to.direct.free(h.rows, h.size)
	}
}

// subscriptionsChanged is the queue name in notifications of changed subscriptions.
const subscriptionsChanged = ""

// notifyEvery is the least time between two notifications to other processes.
const notifyEvery = 50 * time.Millisecond

// wakes wakes receivers when there are new rows: those of this process directly, those of others
// through the [Waker].
type wakes struct {
	hearing atomic.Bool // notifications of other processes arrive

	mu        sync.Mutex // guards the rest
	receivers map[string][]*receiver
	pending   map[string]struct{} // queues to notify other processes of; nil without a Waker

	signal chan struct{} // holds a token while pending is not empty
}

func (w *wakes) init(store Store) (waker Waker, others bool) {
	waker, others = store.(Waker)
	w.receivers, w.signal = map[string][]*receiver{}, make(chan struct{}, 1)
	if others {
		w.pending = map[string]struct{}{}
	}
	return waker, others
}

func (w *wakes) add(r *receiver) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.receivers[r.queue] = append(w.receivers[r.queue], r)
}

// receiver returns a receiver of queue, or nil without one.
func (w *wakes) receiver(queue string) *receiver {
	w.mu.Lock()
	defer w.mu.Unlock()
	if rs := w.receivers[queue]; len(rs) > 0 {
		return rs[0]
	}
	return nil
}

func (w *wakes) remove(r *receiver) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.receivers[r.queue] = slices.DeleteFunc(w.receivers[r.queue], func(other *receiver) bool { return other == r })
}

// flushed announces the rows that units have made visible, at once or later.
func (w *wakes) flushed(units []*Unit) {
	last := ""
	for _, u := range units {
		if u.Lost {
			continue
		}
		if (u.Verb == Retry || u.Verb == Release) && u.Queue != last {
			last = u.Queue
			w.announce(last)
		}
		for i := range u.Rows {
			if r := &u.Rows[i]; r.Queue != last && r.Lease == 0 && !r.Removes {
				last = r.Queue
				w.announce(last)
			}
		}
	}
}

// announce wakes the receivers of queue, and has other processes notified: there is a new row.
func (w *wakes) announce(queue string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wake(queue)
	if _, ok := w.pending[queue]; ok || w.pending == nil {
		return
	}
	w.pending[queue] = struct{}{}
	signal(w.signal)
}

// signal puts a token into c unless it has one.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// wake wakes the receivers of queue. mu is held.
func (w *wakes) wake(queue string) {
	for _, r := range w.receivers[queue] {
		signal(r.woken)
	}
}

func (w *wakes) wakeAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for queue := range w.receivers {
		w.wake(queue)
	}
}

// notify notifies other processes of new rows until the Conn is closed, and then once more. A
// notification that fails is not repeated: other processes poll.
func (c *Conn) notify(store Waker) {
	for c.life.Err() == nil {
		select {
		case <-c.wakes.signal:
			c.notifyOnce(store)
			_ = backoff.Sleep(c.life, notifyEvery)
		case <-c.life.Done():
		}
	}
	<-c.written
	c.notifyOnce(store)
}

func (c *Conn) notifyOnce(store Waker) {
	c.wakes.mu.Lock()
	queues := slices.Collect(maps.Keys(c.wakes.pending))
	clear(c.wakes.pending)
	c.wakes.mu.Unlock()
	if len(queues) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = store.Notify(ctx, queues)
}

// heard handles a notification of another process.
func (c *Conn) heard(queue string) {
	if queue == subscriptionsChanged {
		c.subs.forget()
		return
	}
	c.wakes.mu.Lock()
	defer c.wakes.mu.Unlock()
	c.wakes.wake(queue)
}

// listen wakes receivers on notifications of other processes, until the Conn is closed.
func (c *Conn) listen(store Waker) {
	pause := backoff.Backoff{Min: 100 * time.Millisecond, Max: 10 * time.Second}
	for {
		err := store.Listen(c.life, func() {
			pause.Reset()
			c.wakes.hearing.Store(true)
			c.wakes.wakeAll() // to find earlier rows
		}, c.heard)
		broke := c.wakes.hearing.Swap(false)
		if c.life.Err() != nil {
			return
		}
		if broke {
			c.cfg.Env.Log().WarnContext(c.life, "the connection for notifications broke: receivers poll until it is back", "error", err)
			c.wakes.wakeAll() // to poll more often
		}
		if pause.Wait(c.life) != nil {
			return
		}
	}
}

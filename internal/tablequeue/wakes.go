package tablequeue

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// maxDirectBytes bounds the bodies of direct rows. The first one has room whatever its size.
const maxDirectBytes = 64 << 20

// arrivals is the part of a receiver that new rows of its queue reach.
type arrivals struct {
	queue  string
	woken  chan struct{} // holds a token when there may be new rows
	direct direct
}

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
	delivery transport.Delivery
	lease    Lease
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
func (h *direct) take(limit int, maxBytes int64, oldest time.Time) (fresh []transport.Delivery, old []Lease) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.rows) == 0 {
		return nil, nil
	}
	slices.SortFunc(h.rows, func(a, b directRow) int { return cmp.Compare(a.lease.Seq, b.lease.Seq) })
	n, bytes := 0, int64(0)
	for _, row := range h.rows {
		d, size := row.delivery, int64(len(row.delivery.Message().Body))
		if row.since.Before(oldest) {
			old = append(old, row.lease)
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

// subscriptionsChanged is the queue name in notifications of changed subscriptions.
const subscriptionsChanged = ""

// wakes wakes receivers when there are new rows: those of this process directly, those of others
// through the [Waker].
type wakes struct {
	hearing atomic.Bool // notifications of other processes arrive

	mu        sync.Mutex // guards the rest
	receivers map[string][]*arrivals
	pending   map[string]struct{} // queues to notify other processes of; nil without a Waker

	signal chan struct{} // holds a token while pending is not empty
}

func (w *wakes) init(others Waker) {
	w.receivers, w.signal = map[string][]*arrivals{}, make(chan struct{}, 1)
	if others != nil {
		w.pending = map[string]struct{}{}
	}
}

func (w *wakes) add(r *arrivals) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.receivers[r.queue] = append(w.receivers[r.queue], r)
}

// receiver returns a receiver of queue, or nil without one.
func (w *wakes) receiver(queue string) *arrivals {
	w.mu.Lock()
	defer w.mu.Unlock()
	if rs := w.receivers[queue]; len(rs) > 0 {
		return rs[0]
	}
	return nil
}

func (w *wakes) remove(r *arrivals) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.receivers[r.queue] = slices.DeleteFunc(w.receivers[r.queue], func(other *arrivals) bool { return other == r })
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

// takePending returns the queues to notify other processes of, and forgets the queues.
func (w *wakes) takePending() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	queues := slices.Collect(maps.Keys(w.pending))
	clear(w.pending)
	return queues
}

// heard wakes the receivers of queue after a notification of another process.
func (w *wakes) heard(queue string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wake(queue)
}

// signal puts a token into c unless it has one.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

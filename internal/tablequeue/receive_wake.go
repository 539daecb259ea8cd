package tablequeue

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
)

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

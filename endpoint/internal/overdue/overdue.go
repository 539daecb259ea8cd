// Package overdue finds calls of the user's functions that run longer than they may.
package overdue

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// look is the time between two looks at the calls.
	look = time.Second
	// stacks is how many stacks of one handler a look logs. The handler's other calls are probably stuck in the same place.
	stacks = 3
)

// long are the durations after which a call without a limit is logged.
var long = []time.Duration{10 * time.Minute, time.Hour, 6 * time.Hour}

// Call is one call: of the handlers of a message, or of a function of the configuration. The zero value is ready for
// [Watch.Begin]. After [Watch.End] a Call may begin again.
type Call struct {
	handler atomic.Pointer[string] // that runs; nil before the first
	due     atomic.Int64           // end of the limit, in nanoseconds since the start of the watch; 0: no limit
	limit   atomic.Int64           // in nanoseconds

	// The rest is guarded by the mutex of the watch.
	previous, next *Call
	queue, message string
	goroutine      uint64
	began          time.Duration
	logged         int           // lines about this call
	loggedDue      time.Duration // the limit that was logged last
}

// Late is a call that has not returned.
type Late struct {
	Queue   string // of the message; "" without one
	Message string // id
	Handler string // name; "" before the first handler, in a behavior
	Running time.Duration
	Limit   time.Duration // 0: none

	call *Call
}

// Watch is the calls that run. The zero value has no log; use [New]. A Watch is safe for concurrent use.
type Watch struct {
	log   *slog.Logger
	start time.Time

	mu    sync.Mutex // guards the calls
	first *Call
}

// New returns a watch that logs to log.
func New(log *slog.Logger) *Watch {
	return &Watch{log: log, start: time.Now()}
}

// Begin adds c: a call for a message, which goroutine runs.
func (w *Watch) Begin(c *Call, queue, message string, goroutine uint64) {
	now := time.Since(w.start)
	w.mu.Lock()
	c.queue, c.message, c.goroutine = queue, message, goroutine
	c.began, c.logged, c.loggedDue = now, 0, 0
	c.previous, c.next = nil, w.first
	if w.first != nil {
		w.first.previous = c
	}
	w.first = c
	w.mu.Unlock()
}

// End removes c.
func (w *Watch) End(c *Call) {
	w.mu.Lock()
	if c.next != nil {
		c.next.previous = c.previous
	}
	if c.previous != nil {
		c.previous.next = c.next
	} else {
		w.first = c.next
	}
	c.previous, c.next = nil, nil
	w.mu.Unlock()
	c.handler.Store(nil)
	c.due.Store(0)
}

// Enter records the handler that the call runs now. The text must not change.
func (c *Call) Enter(handler *string) { c.handler.Store(handler) }

// Limit sets the time that the call has from now on. 0 removes the limit.
func (w *Watch) Limit(c *Call, limit time.Duration) {
	if limit == 0 {
		c.due.Store(0)
		return
	}
	c.limit.Store(int64(limit))
	c.due.Store(max(1, int64(time.Since(w.start)+limit)))
}

// Run logs calls that are late, until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			w.report(ctx)
		}
	}
}

// report logs the calls that became late since the last report.
func (w *Watch) report(ctx context.Context) {
	var fresh []Late
	var goroutines []uint64
	perHandler := map[string]int{}
	w.each(func(c *Call, l Late) {
		switch {
		case l.Limit > 0 && c.loggedDue == time.Duration(c.due.Load()):
			return
		case l.Limit > 0:
			c.loggedDue = time.Duration(c.due.Load())
		case c.logged >= len(long) || l.Running < long[c.logged]:
			return
		default:
			c.logged++
		}
		if perHandler[l.Handler]++; perHandler[l.Handler] <= stacks && c.goroutine != 0 {
			goroutines = append(goroutines, c.goroutine)
		}
		fresh = append(fresh, l)
	})
	if len(fresh) == 0 {
		return
	}
	found := stacksOf(goroutines)
	for _, l := range fresh {
		attrs := []slog.Attr{
			slog.String("handler", l.Handler), slog.String("message", l.Message), slog.String("queue", l.Queue),
			slog.Duration("running", l.Running.Round(time.Millisecond)),
		}
		if stack := found[l.call.goroutine]; stack != "" {
			attrs = append(attrs, slog.String("stack", stack))
		}
		if l.Limit > 0 {
			attrs = append(attrs, slog.Duration("limit", l.Limit))
			w.log.LogAttrs(ctx, slog.LevelWarn, "a handler has not returned within its time limit: it must return when its context ends", attrs...)
			continue
		}
		w.log.LogAttrs(ctx, slog.LevelWarn, "a handler runs for very long: set Config.HandlerTimeout if it should not", attrs...)
	}
}

// each calls f with each call that is late: a second over its limit, or if the call has no limit, after the first duration of
// long. each locks mu, and f is called with mu held.
func (w *Watch) each(f func(*Call, Late)) {
	now := time.Since(w.start)
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := w.first; c != nil; c = c.next {
		l := c.at(now)
		due := time.Duration(c.due.Load())
		switch {
		case due > 0 && now < due+look, due == 0 && l.Running < long[0]:
			continue
		case due > 0:
			l.Limit = time.Duration(c.limit.Load())
		}
		f(c, l)
	}
}

// at returns the call as it is at now. Called with mu held.
func (c *Call) at(now time.Duration) Late {
	l := Late{Queue: c.queue, Message: c.message, Running: now - c.began, call: c}
	if handler := c.handler.Load(); handler != nil {
		l.Handler = *handler
	}
	return l
}

// Late returns the calls for messages of queue that are late.
func (w *Watch) Late(queue string) []Late {
	var late []Late
	w.each(func(_ *Call, l Late) {
		if l.Queue == queue {
			late = append(late, l)
		}
	})
	return late
}

// Running returns the calls that have been running for at least d. The longest-running call is first.
func (w *Watch) Running(d time.Duration) []Late {
	now := time.Since(w.start)
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []Late
	for c := w.first; c != nil; c = c.next {
		if now-c.began >= d {
			all = append(all, c.at(now))
		}
	}
	slices.SortStableFunc(all, func(a, b Late) int { return cmp.Compare(b.Running, a.Running) })
	return all
}

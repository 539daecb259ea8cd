// Package overdue finds calls of the user's functions that run for too long.
package overdue

import (
	"bytes"
	"cmp"
	"context"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/panics"
	"github.com/holdfast-go/holdfast/internal/goroutines"
	"github.com/holdfast-go/holdfast/internal/pump"
)

const (
	// Patience is the time after which a function is late.
	Patience = 10 * time.Second
	// look is the time between two looks at the calls.
	look = time.Second
	// stacks is how many stacks of one handler a look logs. The handler's other calls are probably
	// stuck in the same place.
	stacks = 3
)

// long are the durations after which a call without a limit is logged.
var long = []time.Duration{10 * time.Minute, time.Hour, 6 * time.Hour}

// Call is a call: of the handlers of a message, or of a function of the configuration. The zero
// value is ready for [Watch.Begin]. After [Watch.End] a Call may begin again.
type Call struct {
	// Observer is told when the call is late; nil for no observer. Observer must not change while
	// the call runs.
	Observer Observer
	// Slot is the slot of the message; nil for a call without a slot. Slot must not change while the
	// call runs.
	Slot *pump.Slot

	handler  atomic.Pointer[string] // the running handler; nil before the first
	function atomic.Pointer[string] // the running function; nil: no function runs
	due      atomic.Int64           // end of the limit, in nanoseconds since the start of the watch; 0: no limit
	limit    atomic.Int64           // in nanoseconds

	// The rest is guarded by the mutex of the watch.
	previous, next *Call
	queue, message string
	goroutine      uint64
	state          state
	began          time.Duration
	looks          *looks // nil before the first look. Few calls last so long.
}

// looks has the findings of the looks at a call.
type looks struct {
	logged     int           // lines about the call
	loggedDue  time.Duration // the last logged limit
	seen       *string       // the function at the last look
	seenAt     time.Duration // when the function was seen first
	loggedSeen bool          // there is a line about the function
}

// state is the state of a call.
type state int8

const (
	ended     state = iota
	running         // the caller waits for the call
	suspended       // the endpoint's own code runs within the call
	left            // the caller waits no longer
)

// Observer is told about a late call.
type Observer interface {
	// Late is called once for each line of the log about the call. The call may have returned
	// meanwhile.
	Late()
}

// Late is a call that has not returned.
type Late struct {
	Queue    string // of the message; "" without one
	Message  string // id
	Handler  string // name; "" before the first handler, in a behavior
	Function bool   // Handler is the name of a function
	Running  time.Duration
	Limit    time.Duration // 0: no limit
	Slot     *pump.Slot    // see [Call.Slot]

	goroutine uint64 // 0 if unknown
}

// Watch is the calls that run. The zero value has no log; use [New]. A Watch is safe for concurrent
// use.
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

// Begin adds c: a call of goroutine for a message.
func (w *Watch) Begin(c *Call, queue, message string, goroutine uint64) {
	now := time.Since(w.start)
	w.mu.Lock()
	c.queue, c.message, c.goroutine = queue, message, goroutine
	c.state, c.began, c.looks = running, now, nil
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
	c.previous, c.next, c.state = nil, nil, ended
	w.mu.Unlock()
	c.handler.Store(nil)
	c.function.Store(nil)
	c.due.Store(0)
}

// Apart calls f, a function of the program, in a goroutine of its own: see [panics.Apart]. The call
// is counted until f returns.
func (w *Watch) Apart(c *Call, name *string, queue, message string, f func() error) error {
	return panics.Apart(func() error { //nolint:wrapcheck // the error is the function's
		c.EnterFunction(name)
		w.Begin(c, queue, message, goroutines.ID())
		defer w.End(c)
		return f()
	})
}

// Suspend has the watch ignore the time of c until Resume is called, because the endpoint's own
// code runs within the call. Suspend and Resume do nothing for a call that has not begun.
func (w *Watch) Suspend(c *Call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.state == running {
		c.state = suspended
	}
}

// Resume ends what Suspend has begun.
func (w *Watch) Resume(c *Call) {
	now := time.Since(w.start)
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.state == suspended {
		c.state, c.began = running, now
		if c.looks != nil {
			c.looks.seen = nil
		}
	}
}

// Leave records that the caller waits for c no longer. The call stays among the late calls until the
// end of the call.
func (w *Watch) Leave(c *Call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.state == running {
		c.state = left
	}
}

// Enter records the running handler of the call. The text must not change.
func (c *Call) Enter(handler *string) { c.handler.Store(handler) }

// EnterFunction records the running function of the call. The text must not change. A function is
// late after [Patience].
func (c *Call) EnterFunction(name *string) { c.function.Store(name) }

// LeaveFunction records that the function has returned.
func (c *Call) LeaveFunction() { c.function.Store(nil) }

// Limit sets the time limit of the call from now on. 0 removes the limit.
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

// report logs the calls that became late since the last report, and tells the observers.
func (w *Watch) report(ctx context.Context) {
	var fresh []Late
	var observers []Observer
	var goroutines []uint64
	perHandler := map[string]int{}
	w.each(func(c *Call, l Late) {
		if !c.isNews(l) {
			return
		}
		if perHandler[l.Handler]++; perHandler[l.Handler] <= stacks && c.goroutine != 0 {
			goroutines = append(goroutines, c.goroutine)
		}
		if c.Observer != nil {
			observers = append(observers, c.Observer)
		}
		fresh = append(fresh, l)
	})
	for _, o := range observers {
		o.Late()
	}
	found := stacksOf(goroutines)
	for _, l := range fresh {
		w.logLate(ctx, l, found[l.goroutine])
	}
}

// isNews reports whether a line about l is due, and counts the line. Called with mu held.
func (c *Call) isNews(l Late) bool {
	switch {
	case l.Function && c.looks.loggedSeen, !l.Function && l.Limit > 0 && c.looks.loggedDue == time.Duration(c.due.Load()):
		return false
	case l.Function:
		c.looks.loggedSeen = true
	case l.Limit > 0:
		c.looks.loggedDue = time.Duration(c.due.Load())
	case c.looks.logged >= len(long) || l.Running < long[c.looks.logged]:
		return false
	default:
		c.looks.logged++
	}
	return true
}

func (w *Watch) logLate(ctx context.Context, l Late, stack string) {
	kind, text := "handler", "a handler runs for very long: set Config.HandlerTimeout if it should not"
	switch {
	case l.Function:
		kind, text = "function", "a function of the program has not returned: its message waits for it"
	case l.Limit > 0:
		text = "a handler has not returned within its time limit: it must return when its context ends"
	}
	attrs := []slog.Attr{
		slog.String(kind, l.Handler), slog.String("message", l.Message), slog.String("queue", l.Queue),
		slog.Duration("running", l.Running.Round(time.Millisecond)),
	}
	if stack != "" {
		attrs = append(attrs, slog.String("stack", stack))
	}
	if l.Limit > 0 {
		attrs = append(attrs, slog.Duration("limit", l.Limit))
	}
	w.log.LogAttrs(ctx, slog.LevelWarn, text, attrs...) //nolint:sloglint // one of three constants
}

// each calls f with each call that is late: of a function after Patience, of a handler a second
// after its limit, or if the handler has no limit, after the first duration of long. each locks mu,
// and f is called with mu held.
func (w *Watch) each(f func(*Call, Late)) {
	now := time.Since(w.start)
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := w.first; c != nil; c = c.next {
		if c.state == suspended {
			continue
		}
		l := c.at(now)
		due := time.Duration(c.due.Load())
		switch {
		case l.Function && l.Running < Patience,
			!l.Function && due > 0 && now < due+look, !l.Function && due == 0 && l.Running < long[0]:
			continue
		case l.Function:
			l.Limit = Patience
		case due > 0:
			l.Limit = time.Duration(c.limit.Load())
		}
		f(c, l)
	}
}

// at returns the call as it is at now. A function counts from the first look that finds it. Called
// with mu held.
func (c *Call) at(now time.Duration) Late {
	l := Late{Queue: c.queue, Message: c.message, Running: now - c.began, Slot: c.Slot, goroutine: c.goroutine}
	if c.looks == nil {
		c.looks = &looks{}
	}
	name := c.function.Load()
	if name != c.looks.seen {
		c.looks.seen, c.looks.seenAt, c.looks.loggedSeen = name, now, false
	}
	if name != nil {
		l.Handler, l.Function, l.Running = *name, true, now-c.looks.seenAt
	} else if handler := c.handler.Load(); handler != nil {
		l.Handler = *handler
	}
	return l
}

// Late returns the late calls for messages of queue whose callers wait.
func (w *Watch) Late(queue string) []Late {
	return w.late(func(c *Call, l Late) bool { return l.Queue == queue && c.state != left })
}

// LateFunctions returns the calls of functions that are late.
func (w *Watch) LateFunctions() []Late {
	return w.late(func(_ *Call, l Late) bool { return l.Function })
}

func (w *Watch) late(pick func(*Call, Late) bool) (late []Late) {
	w.each(func(c *Call, l Late) {
		if pick(c, l) {
			late = append(late, l)
		}
	})
	return late
}

// Running returns the calls that have been running for at least d and that their callers wait for.
// The longest-running call is first.
func (w *Watch) Running(d time.Duration) []Late {
	now := time.Since(w.start)
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []Late
	for c := w.first; c != nil; c = c.next {
		if c.state == running && now-c.began >= d {
			all = append(all, c.at(now))
		}
	}
	slices.SortStableFunc(all, func(a, b Late) int { return cmp.Compare(b.Running, a.Running) })
	return all
}

const (
	// maxDump bounds the stacks of all goroutines, among which a stack is looked for.
	maxDump = 16 << 20
	// maxStack bounds a stack in the log.
	maxStack = 8 << 10
)

// stacksOf returns the stacks of goroutines. A goroutine that has ended has none.
func stacksOf(ids []uint64) map[uint64]string {
	if len(ids) == 0 {
		return nil
	}
	dump := make([]byte, 64<<10)
	for {
		n := runtime.Stack(dump, true)
		if n < len(dump) || len(dump) >= maxDump {
			dump = dump[:n]
			break
		}
		dump = make([]byte, 4*len(dump))
	}
	found := make(map[uint64]string, len(ids))
	for stack := range bytes.SplitSeq(dump, []byte("\n\n")) {
		if id := goroutines.ParseID(stack); slices.Contains(ids, id) {
			found[id] = string(stack[:min(len(stack), maxStack)])
		}
	}
	return found
}

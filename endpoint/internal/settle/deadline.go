package settle

import (
	"context"
	"sync"
	"time"
)

// Timeout is the least time of a settling call.
const Timeout = 10 * time.Second

// Deadlines returns contexts that end after at least [Timeout] and less than twice that. Messages
// that settle at about the same time share one, because a timer for each would cost more than the
// rest of settling.
type Deadlines struct {
	Parent context.Context //nolint:containedctx // of the whole run, never cancelled before its end
	// Blocked reports whether the broker takes no messages at the moment: then no context ends.
	// Optional.
	Blocked func() bool

	mu      sync.Mutex      // guards the rest
	current context.Context //nolint:containedctx // the context that is returned
	cancel  context.CancelFunc
	renewed time.Time
}

func (d *Deadlines) context() context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.current == nil || time.Since(d.renewed) > Timeout {
		if d.Blocked == nil {
			d.current, d.cancel = context.WithTimeout(d.Parent, 2*Timeout)
		} else {
			d.current, d.cancel = withExtension(d.Parent, 2*Timeout, d.Blocked)
		}
		d.renewed = time.Now()
	}
	return d.current
}

// Close ends the current context; nothing may be settling any more.
func (d *Deadlines) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cancel != nil {
		d.cancel()
	}
}

// extended is a context whose end is that of a deadline, also for contexts derived from it: Value
// does not show them done, whose error they would take.
type extended struct {
	context.Context                 //nolint:containedctx // it is one
	done            context.Context //nolint:containedctx // it ends as extended does
}

func (c extended) Done() <-chan struct{} { return c.done.Done() }

func (c extended) Err() error {
	if c.done.Err() == nil {
		return nil
	}
	return context.DeadlineExceeded
}

// withExtension returns a context whose deadline is extended while the broker is blocked, and by
// another span after that. Waiting for a blocked broker is no failure of the message that is
// settled.
func withExtension(
	parent context.Context, span time.Duration, blocked func() bool,
) (context.Context, func()) {
	done, end := context.WithCancel(parent)
	var arm func(wasBlocked bool)
	arm = func(wasBlocked bool) {
		time.AfterFunc(span, func() {
			switch isBlocked := blocked(); {
			case done.Err() != nil:
			case isBlocked || wasBlocked:
				arm(isBlocked)
			default:
				end()
			}
		})
	}
	arm(false)
	return extended{parent, done}, end
}

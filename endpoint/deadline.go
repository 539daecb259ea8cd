package endpoint

import (
	"context"
	"sync"
	"time"
)

// deadlines hands out contexts that end after at least span and less than twice
// that. Messages that settle at about the same time share one, because a timer
// for each would cost more than the rest of settling.
type deadlines struct {
	parent context.Context //nolint:containedctx // of the whole run, never cancelled before its end
	span   time.Duration

	mu      sync.Mutex      // guards the rest
	current context.Context //nolint:containedctx // what is handed out
	cancel  context.CancelFunc
	renewed time.Time
}

func (d *deadlines) context() context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.current == nil || time.Since(d.renewed) > d.span {
		d.current, d.cancel = context.WithTimeout(d.parent, 2*d.span)
		d.renewed = time.Now()
	}
	return d.current
}

// close ends the context handed out last; nothing may be settling any more.
func (d *deadlines) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cancel != nil {
		d.cancel()
	}
}

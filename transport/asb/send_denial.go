package asb

import (
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// denial records that a destination refuses all requests, because it does not exist, is disabled or
// full, or the key has no right to it. Further messages fail without a request, except for one each
// denialPause, until a request succeeds. The zero value permits all.
type denial struct {
	mu    sync.Mutex // guards the fields below
	err   error
	until time.Time
}

// check returns the refusal of an earlier request, or nil to permit a request.
func (d *denial) check(now time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err == nil || now.Before(d.until) {
		return d.err
	}
	d.until = now.Add(denialPause)
	return nil
}

// note records the outcome of a request. One that is no final answer changes nothing.
func (d *denial) note(err error) {
	if err != nil && !oneOf(plain(err), transport.ErrNoQueue, errRights, errOff, errFull) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
	if err != nil {
		d.until = time.Now().Add(denialPause)
	}
}

// forgetDenials permits a request to every destination.
func (c *conn) forgetDenials() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.senders {
		s.denial.note(nil)
	}
}

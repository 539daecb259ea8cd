package asb

import (
	"errors"
	"sync"
	"time"
)

// denial remembers that a destination refuses all requests: it does not exist, is full, or the key has no right to it. Further
// messages then fail without a request, but for one each denialPause, until one is accepted. The zero value remembers none.
type denial struct {
	mu    sync.Mutex // guards what follows
	err   error
	until time.Time
}

// check returns why a request would be refused, or nil where it is to be made.
func (d *denial) check(now time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err == nil || now.Before(d.until) {
		return d.err
	}
	d.until = now.Add(denialPause)
	return nil
}

// note takes in the outcome of a request. What is not certain changes nothing.
func (d *denial) note(err error) {
	if err != nil && (!whole(err) || errors.Is(err, errBusy) || errors.Is(err, errFailed)) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
	if err != nil {
		d.until = time.Now().Add(denialPause)
	}
}

// forgetDenials has every destination asked for again.
func (c *conn) forgetDenials() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.senders {
		s.denial.note(nil)
	}
}

package sqs

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

// paceStep is the time between two requests after AWS has throttled or denied one.
const paceStep = time.Second

// pace limits requests to one a second from a request that AWS throttled, or denied as a whole,
// until one succeeds. The zero value is ready, and safe for concurrent use.
type pace struct {
	mu   sync.Mutex // guards the fields below
	slow bool
	next time.Time // of the next request, while slow
}

// wait returns when a request may be sent. It fails when ctx ends first.
func (p *pace) wait(ctx context.Context) error {
	p.mu.Lock()
	if !p.slow {
		p.mu.Unlock()
		return nil
	}
	now := time.Now()
	at := p.next
	if at.Before(now) {
		at = now
	}
	if end, ok := ctx.Deadline(); ok && at.After(end) {
		p.mu.Unlock()
		return errPaced
	}
	p.next = at.Add(paceStep)
	p.mu.Unlock()
	if err := backoff.Sleep(ctx, at.Sub(now)); err != nil {
		return errPaced
	}
	return nil
}

// errPaced is the error of a request that was not sent.
var errPaced = fmt.Errorf("AWS throttles or denies the requests, so that they are sent one a second: %w", transport.ErrUnreachable)

// note records the result of a request.
func (p *pace) note(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err == nil:
		p.slow = false
	case throttled(err) || isDenied(err):
		if at := time.Now().Add(paceStep); !p.slow || p.next.Before(at) {
			p.next = at
		}
		p.slow = true
	}
}

// paced sends a request to a queue or topic, and repeats it while AWS throttles it, up to the
// number of tries of other requests. A throttle slows down all sends; a denial only sends to the
// same queue or topic.
func (c *conn) paced(ctx context.Context, name string, request func() error) (err error) {
	for range tries {
		if denied, ok := c.denied.Load(name); ok {
			if err := denied.(*pace).wait(ctx); err != nil { //nolint:errcheck,forcetypeassert // there is nothing else in it
				return err
			}
		}
		if err := c.sending.wait(ctx); err != nil {
			return err
		}
		err = request()
		switch {
		case err == nil:
			c.sending.note(nil)
			c.denied.Delete(name)
		case throttled(err):
			c.sending.note(err)
			continue
		case isDenied(err):
			denied, _ := c.denied.LoadOrStore(name, new(pace)) // one for all requests in flight
			denied.(*pace).note(err)                           //nolint:errcheck,forcetypeassert // as above
		}
		return err
	}
	return err
}

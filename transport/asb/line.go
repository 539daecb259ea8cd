package asb

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

const (
	redialMin = 50 * time.Millisecond
	redialMax = 5 * time.Second
)

// line is a connection that is dialled again when it was lost: a session after the other. Sending has one, and each
// receiver: an error that the client library takes for one of the connection ends all that is on it.
type line struct {
	ns     *namespace
	turn   chan struct{} // holds a token while nobody changes what follows
	closed bool
	now    *session
	pace   backoff.Backoff
	wait   time.Duration // from the next dial to the one after it
	dialed time.Time     // the last time
	next   time.Time     // when to dial again
	err    error         // why the last dial failed

	throttle *throttle

	old sync.WaitGroup // sessions that are being closed
}

func newLine(ns *namespace) *line {
	l := &line{ns: ns, turn: make(chan struct{}, 1), pace: backoff.Backoff{Min: redialMin, Max: redialMax}, throttle: newThrottle()}
	l.turn <- struct{}{}
	return l
}

// session is the present one, or a new one. While the broker is away, it fails at once until it is time to try again; where sessions end
// soon after they began, it waits until then.
func (l *line) session(ctx context.Context) (*session, error) {
	select {
	case <-l.turn:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { l.turn <- struct{}{} }()
	switch {
	case l.closed:
		return nil, transport.ErrClosed
	case l.now != nil && l.now.alive():
		return l.now, nil
	case l.now != nil && time.Since(l.dialed) > redialMax:
		l.wait = 0 // it was of some use
		l.pace.Reset()
	}
	l.drop()
	if pause := time.Until(l.next); pause > 0 && (l.err != nil || backoff.Sleep(ctx, pause) != nil) {
		return nil, cmp.Or(l.err, context.Cause(ctx))
	}
	return l.dial(ctx)
}

// dial makes a session, and says when there may be the next.
func (l *line) dial(ctx context.Context) (*session, error) {
	s, err := l.ns.open(ctx)
	if err != nil && ctx.Err() != nil {
		return nil, err // for want of time, which others may have
	}
	l.dialed = time.Now()
	l.next, l.wait = l.dialed.Add(l.wait), l.pace.Next()
	l.now, l.err = s, err
	return s, err
}

// drop closes the present session behind the caller's back.
func (l *line) drop() {
	if s := l.now; s != nil {
		l.now = nil
		l.old.Go(s.close)
	}
}

// close ends the line and waits for its goroutines.
func (l *line) close() {
	<-l.turn // whoever has it dials, within dialTimeout, with a context that ends before
	l.closed = true
	l.drop()
	l.turn <- struct{}{}
	l.old.Wait()
}

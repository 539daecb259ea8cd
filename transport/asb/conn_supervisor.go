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

// supervisor keeps a client connected: after the loss of its connection it dials another. Sending
// has a supervisor, and each receiver has one, because the library may take the error of one link
// for the end of its connection, with all links on it.
type supervisor struct {
	ns      *namespace
	turn    chan struct{} // holds a token while the fields below are not in use
	closed  bool
	current *client
	pace    backoff.Backoff
	wait    time.Duration // from the next dial to the one after it
	dialed  time.Time     // of the last dial
	next    time.Time     // of the next dial, at the earliest
	err     error         // of the last dial

	throttle *throttle

	closing sync.WaitGroup // former clients
}

func newSupervisor(ns *namespace) *supervisor {
	v := &supervisor{ns: ns, turn: make(chan struct{}, 1), pace: backoff.Backoff{Min: redialMin, Max: redialMax}, throttle: newThrottle()}
	v.turn <- struct{}{}
	return v
}

// client returns the connected client, or dials. Between two dials there is a pause: after a failed
// dial client fails with its error until the pause is over, and after a connection that soon was
// lost it waits.
func (v *supervisor) client(ctx context.Context) (*client, error) {
	select {
	case <-v.turn:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { v.turn <- struct{}{} }()
	switch {
	case v.closed:
		return nil, transport.ErrClosed
	case v.current != nil && v.current.alive():
		return v.current, nil
	case v.current != nil && time.Since(v.dialed) > redialMax:
		v.wait = 0 // the connection lasted
		v.pace.Reset()
	}
	v.drop()
	if pause := time.Until(v.next); pause > 0 && (v.err != nil || backoff.Sleep(ctx, pause) != nil) {
		return nil, cmp.Or(v.err, context.Cause(ctx))
	}
	cl, err := v.ns.open(ctx)
	if err != nil && ctx.Err() != nil {
		return nil, err // says nothing about the namespace
	}
	v.dialed = time.Now()
	v.next, v.wait = v.dialed.Add(v.wait), v.pace.Next()
	v.current, v.err = cl, err
	return cl, err
}

// drop closes the current client in a goroutine.
func (v *supervisor) drop() {
	if cl := v.current; cl != nil {
		v.current = nil
		v.closing.Go(cl.close)
	}
}

// close ends the supervisor and waits for its goroutines.
func (v *supervisor) close() {
	<-v.turn // a dial in progress ends within dialTimeout
	v.closed = true
	v.drop()
	v.turn <- struct{}{}
	v.closing.Wait()
}

package asb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/holdfast-go/holdfast/transport"
)

const (
	// maxReceive is the most that one Receive returns.
	maxReceive = 500
	// hearTimeout bounds the request by which a receiver finds out whether the service answers
	// again.
	hearTimeout = 5 * time.Second
)

var (
	_ transport.Receiver = (*receiver)(nil)
	_ transport.Renewer  = (*receiver)(nil)
	_ transport.Listener = (*receiver)(nil)
)

// receivers are the receivers of a conn.
type receivers struct {
	*core
	senders *senders

	mu   sync.Mutex             // guards the fields below
	open map[*receiver]struct{} // nil after Close
	own  []string               // the endpoint's queues, as far as they are known
}

// note adds a queue to the endpoint's own.
func (rs *receivers) note(queue string) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if !slices.Contains(rs.own, queue) {
		rs.own = append(rs.own, queue)
	}
}

// close closes the receivers. No further one can be opened.
func (rs *receivers) close() {
	rs.mu.Lock()
	open := rs.open
	rs.open = nil
	rs.mu.Unlock()
	var all sync.WaitGroup
	for r := range open {
		all.Go(r.shut)
	}
	all.Wait()
}

// OpenReceiver implements [transport.Conn].
func (rs *receivers) OpenReceiver(
	ctx context.Context, opts transport.ReceiverOptions,
) (transport.Receiver, error) {
	path, dead, err := rs.naming.queue(opts.Queue)
	switch {
	case rs.isClosed():
		return nil, transport.ErrClosed
	case err != nil:
		return nil, err
	}
	r := &receiver{
		of: rs, queue: opts.Queue, path: path, dead: dead, supervisor: newSupervisor(rs.ns),
		free: make(chan struct{}, rs.ns.Links), inFlight: map[*delivery]time.Time{},
		retired: map[*azservicebus.Receiver]struct{}{},
	}
	r.ctx, r.stop = context.WithCancelCause(rs.ctx)
	for range rs.ns.Links {
		r.all = append(r.all, &link{receiver: r})
		r.free <- struct{}{}
	}
	r.settler.receiver = r
	err = r.look(ctx)
	rs.mu.Lock()
	if rs.open == nil {
		err = transport.ErrClosed
	}
	if err == nil {
		rs.open[r] = struct{}{} // to be closed with the conn
	}
	rs.mu.Unlock()
	if err != nil {
		r.stop(err)
		r.supervisor.close()
		return nil, err
	}
	return r, nil
}

// receiver receives from a queue over a connection of its own, by several links if many Receive
// calls run at once. After Close the connection stays until all deliveries are settled or lost.
type receiver struct {
	of         *receivers
	queue      string // as the endpoint knows it
	path       string
	dead       bool // receives the dead letters of the queue
	supervisor *supervisor
	free       chan struct{} // a token for each link that is not receiving

	ctx  context.Context //nolint:containedctx // ends with Close
	stop context.CancelCauseFunc

	heard atomic.Bool // the service has answered since the last failure

	all       []*link   // the links
	short     sync.Once // renewing short locks
	settler   link      // for requests by a lock's token
	receiving sync.WaitGroup

	mu       sync.Mutex // guards the fields below
	closed   bool
	inFlight map[*delivery]time.Time // the latest time at which the lock expires
	retired  map[*azservicebus.Receiver]struct{}
}

// look returns an error unless the queue exists and the credential may receive from it. It browses
// a message.
func (r *receiver) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, dialTimeout, errNoReply)
	defer cancel()
	ctx, over := joined(ctx, r.of.ctx)
	defer over()
	_, err := r.supervisor.browse(ctx, r.settler.on, 0, 1)
	if own, ok := r.supervisor.throttle.try(); ok {
		own.end(err)
	}
	if there(err) {
		r.heard.Store(true)
		return nil
	}
	return wrap(err, "receive from %q", r.queue)
}

// Window implements [transport.Receiver]. Nothing is prefetched.
func (r *receiver) Window(int) {}

// Listening implements [transport.Listener].
func (r *receiver) Listening() bool { return r.heard.Load() }

// hear browses a message after a failure: a receive at an empty queue gets no answer. The service
// may have ended the link for that, too, so after a request without an answer the next one attaches
// another.
func (r *receiver) hear(ctx context.Context) error {
	if r.heard.Load() {
		return nil
	}
	bounded, cancel := context.WithTimeoutCause(ctx, hearTimeout, errNoReply)
	defer cancel()
	var used *azservicebus.Receiver
	_, err := r.supervisor.browse(bounded, func(cl *client) (rcv *azservicebus.Receiver, err error) {
		used, err = r.settler.on(cl)
		return used, err
	}, 0, 1)
	if there(err) {
		r.heard.Store(true)
		return nil
	}
	if used != nil && mayHaveEnded(err) && ctx.Err() == nil {
		r.replaceSettler(used)
	}
	return cmp.Or(context.Cause(bounded), err)
}

// Receive implements [transport.Receiver].
func (r *receiver) Receive(ctx context.Context, limit int) ([]transport.Delivery, error) {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil, transport.ErrClosed
	}
	r.receiving.Add(1)
	r.mu.Unlock()
	defer r.receiving.Done()
	ctx, over := joined(ctx, r.ctx)
	defer over()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	l, err := r.take(ctx)
	if err != nil {
		return nil, err
	}
	defer r.endReceive(l)
	err = r.hear(ctx)
	var ds []transport.Delivery
	if err == nil {
		ds, err = l.receive(ctx, min(limit, maxReceive))
	}
	if ctx.Err() == nil {
		r.heard.Store(err == nil)
	}
	switch {
	case err == nil:
		return ds, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	return nil, wrap(err, "receive from %q", r.queue)
}

// take returns the first link that is not receiving, so that few Receive calls use few links.
func (r *receiver) take(ctx context.Context) (*link, error) {
	select {
	case <-r.free:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.all, func(l *link) bool { return !l.receiving })
	r.all[i].receiving = true
	return r.all[i], nil
}

func (r *receiver) endReceive(l *link) {
	r.mu.Lock()
	l.receiving = false
	r.mu.Unlock()
	r.free <- struct{}{}
}

// Close implements [transport.Receiver]. The connection stays for deliveries that are in flight.
func (r *receiver) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	r.mu.Unlock()
	r.stop(transport.ErrClosed)
	r.receiving.Wait()
	var all sync.WaitGroup
	for _, l := range r.all {
		all.Go(l.close)
	}
	all.Wait()
	r.leave()
	return nil
}

// leave ends the connection after Close if no delivery is in flight.
func (r *receiver) leave() {
	r.mu.Lock()
	over := r.closed && len(r.inFlight) == 0
	r.mu.Unlock()
	if !over {
		return
	}
	r.of.mu.Lock()
	_, mine := r.of.open[r]
	delete(r.of.open, r)
	r.of.mu.Unlock()
	if mine { // else Close of the conn ends it
		r.supervisor.close()
	}
}

// shut closes the receiver, releases deliveries in flight and ends the connection.
func (r *receiver) shut() {
	_ = r.Close() // never fails
	left := r.unsettled()
	ctx, cancel := context.WithTimeout(r.of.ctx, closeTimeout)
	defer cancel()
	var all sync.WaitGroup
	for _, d := range left {
		all.Go(func() { _ = d.Release(ctx) }) // on failure its lock expires
	}
	all.Wait()
	r.supervisor.close()
}

// deliveries returns deliveries of received messages.
func (r *receiver) deliveries(
	msgs []*azservicebus.ReceivedMessage, cl *client, rcv *azservicebus.Receiver,
) []transport.Delivery {
	ds := make([]transport.Delivery, len(msgs))
	until := time.Now().Add(r.of.lease)
	for i, raw := range msgs {
		d := &delivery{receiver: r, raw: raw, client: cl, rcv: rcv, turn: make(chan struct{}, 1)}
		d.message = decode(raw)
		ds[i] = d
		r.mu.Lock()
		r.inFlight[d] = until
		r.mu.Unlock()
	}
	r.mindLock(msgs[0])
	return ds
}

// unsettled returns the deliveries in flight.
func (r *receiver) unsettled() []transport.Delivery {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]transport.Delivery, 0, len(r.inFlight))
	for d := range r.inFlight {
		out = append(out, d)
	}
	return out
}

// expiredReason is the service's reason for dead-lettering expired messages, in queues that are set
// to do so.
const expiredReason = "TTLExpiredException"

// quarantineSuffix ends the name of an endpoint's quarantine queue.
const quarantineSuffix = ".quarantine"

// deadLettersAtOnce is how many dead letters are moved at once: one that the error queue refuses
// must not delay others.
const deadLettersAtOnce = 4

// Satellites implements [transport.Satellites]: one for the dead letters of each of the endpoint's
// queues.
func (rs *receivers) Satellites(ctx context.Context) ([]transport.Satellite, error) {
	if rs.ns.KeepDeadLetters || rs.endpoint == "" { // a tool's conn has none
		return nil, nil
	}
	var (
		all  []transport.Satellite
		errs []error
	)
	rs.mu.Lock()
	own := slices.Clone(rs.own)
	rs.mu.Unlock()
	for _, queue := range own {
		within, cancel := context.WithTimeout(ctx, dialTimeout)
		path, err := rs.naming.entity(queue)
		if err == nil {
			err = rs.exists(within, path)
		}
		cancel()
		switch {
		case err == nil:
			all = append(all, transport.Satellite{Queue: queue + deadLetters, Concurrency: deadLettersAtOnce, Handle: deadLettered(queue)})
		case !errors.Is(plain(err), transport.ErrNoQueue):
			errs = append(errs, fmt.Errorf("asb: look for the dead letters of %q: %w", queue, plain(err)))
		}
	}
	return all, errors.Join(errs...)
}

// deadLettered fails with the broker's reason for dead-lettering a message. An expired message is
// dropped, as its sender intended.
func deadLettered(
	queue string,
) func(context.Context, *transport.Message) ([]transport.Operation, error) {
	return func(_ context.Context, m *transport.Message) ([]transport.Operation, error) {
		reason := m.Native[PropertyDeadLetterReason]
		if reason == expiredReason {
			return nil, nil
		}
		if why := m.Native[PropertyDeadLetterDescription]; why != "" {
			reason += " (" + why + ")"
		}
		return nil, &transport.DeadLetteredError{Queue: queue, Reason: reason, Count: 1}
	}
}

// inFlight returns the deliveries of a queue, or of its dead letters, that this conn has in flight.
func (rs *receivers) inFlight(path string, dead bool) (all []*delivery) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for r := range rs.open {
		if r.path == path && r.dead == dead {
			r.mu.Lock()
			all = slices.AppendSeq(all, maps.Keys(r.inFlight))
			r.mu.Unlock()
		}
	}
	return all
}

package tablequeue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

// forwardsEvery is the time between two looks for the queue of forwards, which another instance may
// create. The instance that creates it receives from it at once.
const forwardsEvery = time.Minute

// ForwardsSuffix is the end of the name of the queue in which delayed messages for foreign queues
// wait, after the name of the queue of the endpoint that sends them. Its rows have the header with
// the destination. The endpoint's instances receive from it, and forward each message when it is
// due.
const ForwardsSuffix = ".forwards"

// forwarders is the number of messages that one process forwards at once.
const forwarders = 8

// Why a delayed message for a foreign queue cannot be kept.
var (
	errSendOnly = fmt.Errorf("%w; they wait in a queue beside that of their sender, and this sender receives from no "+
		"queue: send the message from an endpoint with a queue, or without a delay", ErrNoDelays)
	errExpires = fmt.Errorf("%w that expire: send the message without a time to live, or without a delay", ErrNoDelays)
)

// errNoAnswer is the cause of the end of a context of the Conn's own.
var errNoAnswer = errors.New("the database has not answered in time")

// forwards is the queue in which delayed messages for foreign queues wait. It is created with the
// first of them.
type forwards struct {
	*core

	unusable *unusable

	queue string
	found chan struct{} // closed when the queue exists

	mu      sync.Mutex // guards the rest; held while the queue is created
	exists  bool
	failed  error     // of the last creation
	retryAt time.Time // failed is returned until then
}

func newForwards(c *core, u *unusable) *forwards {
	return &forwards{core: c, unusable: u, queue: c.cfg.Env.Endpoint + ForwardsSuffix, found: make(chan struct{})}
}

// Satellites implements [transport.Satellites]: the queue of forwards, which is created with its
// first message.
func (f *forwards) Satellites(context.Context) ([]transport.Satellite, error) {
	if f.store.Foreign == nil || f.store.Queues.Check(f.queue) != nil {
		return nil, nil
	}
	if _, receives := f.received.Load(f.cfg.Env.Endpoint); !receives {
		return nil, nil
	}
	return []transport.Satellite{{
		Queue: f.queue, Wait: f.await, Concurrency: forwarders, Handle: noDestination,
	}}, nil
}

// await waits until the queue of forwards exists.
func (f *forwards) await(ctx context.Context) error {
	for found := (<-chan struct{})(f.found); ; {
		missing, err := ask(ctx, f.core, nil, func(ctx context.Context) ([]bool, error) {
			return f.store.Topology.Missing(ctx, []string{f.queue})
		})
		if err == nil && !missing[0] {
			return nil
		}
		again := time.NewTimer(forwardsEvery)
		select {
		case <-found:
			found = nil
		case <-again.C:
		case <-ctx.Done():
		}
		again.Stop()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// noDestination is the handler of a message in the queue of forwards that [delivery.Relay] does not
// forward.
func noDestination(context.Context, *transport.Message) ([]transport.Operation, error) {
	return nil, &transport.DeadLetteredError{Reason: "it has no header " + header.ForwardDestination}
}

// keep changes row, a delayed one for a foreign queue, to one that waits in the endpoint's queue of
// forwards.
func (f *forwards) keep(ctx context.Context, row *Row) error {
	if row.Named() {
		return fmt.Errorf("queue %q: %w", row.Queue, ErrNoTimers)
	}
	if row.TTL > 0 {
		return fmt.Errorf("queue %q: %w", row.Queue, errExpires)
	}
	f.gone(row.Queue)
	if err := f.create(ctx); err != nil {
		return fmt.Errorf("queue %q: %w", row.Queue, err)
	}
	if row.Queue == f.queue { // its table was a foreign one
		return nil
	}
	headers, err := header.ParseJSON(string(row.Headers))
	if err != nil {
		return err
	}
	headers.Set(header.ForwardDestination, f.address(row.Queue))
	if n := headers.Len(); n > header.MaxCount {
		return &transport.TooLargeError{What: "header count", Size: n, Max: header.MaxCount}
	}
	row.Headers, row.Queue = headers.AppendJSON(nil), f.queue
	return nil
}

// keepAll is keep for the rows of units that are delayed and for a foreign queue. It reports
// whether there are any. On an error some rows are unchanged.
func (f *forwards) keepAll(units []*Unit) (kept bool, err error) {
	ctx, cancel := context.WithTimeoutCause(f.work, maxWait, errNoAnswer)
	defer cancel()
	for _, u := range units {
		for i := range u.Rows {
			if !f.delaysForeign(&u.Rows[i]) {
				continue
			}
			if err := f.keep(ctx, &u.Rows[i]); err != nil {
				return kept, err
			}
			kept = true
		}
	}
	return kept, nil
}

// create creates the queue of forwards where it is missing.
func (f *forwards) create(ctx context.Context) error {
	if _, receives := f.received.Load(f.cfg.Env.Endpoint); !receives {
		return errSendOnly
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.exists || time.Now().Before(f.retryAt) {
		return f.failed
	}
	if err := f.store.Queues.Check(f.queue); err != nil { // its name is too long
		return &keepError{queue: f.queue, err: err}
	}
	err := f.store.Topology.Exists(ctx, f.queue)
	_, unfit := errors.AsType[*UnfitError](err)
	if unfit || errors.Is(err, transport.ErrNoQueue) { // an installer updates an earlier version
		err = f.store.Topology.Install(ctx, transport.Plan{
			Queues: []transport.Queue{{Name: f.queue}},
		})
		if err == nil { // it leaves a table of another kind as it is
			err = f.store.Topology.Exists(ctx, f.queue)
		}
	}
	if err != nil {
		err = &keepError{queue: f.queue, err: f.unreachable(err)}
		if cause := context.Cause(ctx); cause == nil || errors.Is(cause, errNoAnswer) { // else of this caller alone
			f.failed, f.retryAt = err, time.Now().Add(missingAge)
		}
		return err
	}
	f.failed, f.exists = nil, true
	f.unusable.found()
	select {
	case <-f.found:
	default:
		close(f.found)
	}
	return nil
}

// beside returns the queues of forwards beside queues that exist.
func (f *forwards) beside(ctx context.Context, queues []string) (found []string, err error) {
	if f.store.Foreign == nil {
		return nil, nil
	}
	for _, q := range queues {
		if name := q + ForwardsSuffix; f.store.Queues.Check(name) == nil && !slices.Contains(queues, name) {
			found = append(found, name)
		}
	}
	if len(found) == 0 {
		return nil, nil
	}
	missing, err := f.store.Topology.Missing(ctx, found)
	if err != nil {
		return nil, err
	}
	existing := found[:0]
	for i, name := range found {
		if !missing[i] {
			existing = append(existing, name)
		}
	}
	return existing, nil
}

// with returns queues with the queues of forwards that exist beside those of endpoints.
func (f *forwards) with(ctx context.Context, queues []transport.Queue) ([]transport.Queue, error) {
	var own []string
	for _, q := range queues {
		if !q.Shared {
			own = append(own, q.Name)
		}
	}
	forwards, err := f.beside(ctx, own)
	for _, name := range forwards {
		queues = append(slices.Clip(queues), transport.Queue{Name: name})
	}
	return queues, err
}

// gone notes that queue was removed or has become a foreign one, if it is the queue of forwards.
func (f *forwards) gone(queue string) {
	if queue == f.queue {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.exists = false
	}
}

// keepError is the error of a queue of forwards that cannot be used.
type keepError struct {
	queue string
	err   error
}

func (e *keepError) Error() string {
	return fmt.Sprintf("%v; they wait in queue %q, which cannot be used: %v; \"holdfast queues create\" and the script of "+
		"\"holdfast sql script\" create it", ErrNoDelays, e.queue, e.err)
}

func (e *keepError) Unwrap() []error { return []error{ErrNoDelays, e.err} }

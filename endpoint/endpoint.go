package endpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/failurelog"
	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/internal/safelog"
	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/internal/timer"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/resilience"
	"github.com/holdfast-go/holdfast/transport"
)

// Endpoint receives, handles and sends messages while it runs. It is safe for concurrent use.
type Endpoint struct {
	sender

	cfg      Config
	types    *registry
	failures *failurelog.Log
	warnings stateful.Warnings

	receive pipeline.Func[*pipeline.Receive]
	logical pipeline.Func[*pipeline.Logical]
	invoke  pipeline.Func[*pipeline.Invoke]
	recover pipeline.Func[*pipeline.Recover]
	relayed pipeline.Func[*pipeline.Relay]

	bounded bool // messages may have a policy or a time limit of their own
	copies  bool // behaviors and serializers get copies of received messages
	started atomic.Bool

	watchesDispatch bool // the stage has behaviors
	watchesRelay    bool // same

	foreign atomic.Bool   // a message without a handler was received
	ready   chan struct{} // closed when the endpoint can send and receives
	ended   chan struct{} // closed when Run has returned
	err     error         // of Run, set before ended is closed
}

var _ pipeline.Sender = (*Endpoint)(nil)

// WaitReady waits until the endpoint can send and receives, and returns nil while it runs. It
// returns the error of Run where that has failed, [ErrNotRunning] where it has returned nil, and
// the cause of ctx when that ends first.
func (e *Endpoint) WaitReady(ctx context.Context) error {
	select {
	case <-e.ready:
	case <-e.ended:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if !e.over() {
		return nil
	}
	return cmp.Or(e.err, ErrNotRunning)
}

// over reports whether Run has returned.
func (e *Endpoint) over() bool {
	select {
	case <-e.ended:
		return true
	default:
		return false
	}
}

// Send sends m, a registered command or response, to the queue of its route or of [To]. It returns
// nil when the broker has accepted the message, and [ErrNotRunning] before Run is ready.
func (e *Endpoint) Send(ctx context.Context, m any, opts ...SendOption) error {
	return e.send(ctx, m, "", opts, nil)
}

// SendLocal sends m, a registered command or response, to the endpoint's own queue.
func (e *Endpoint) SendLocal(ctx context.Context, m any, opts ...SendOption) error {
	return e.sendLocal(ctx, m, opts, nil)
}

// Publish sends m, a registered event, to the subscribers of its type and of its base types. It
// returns nil when the broker has accepted it, and [ErrNotRunning] before Run is ready.
func (e *Endpoint) Publish(ctx context.Context, m any, opts ...PublishOption) error {
	return e.publish(ctx, m, opts, nil)
}

// Cancel removes a delayed message by its receipt, which [ReceiptIn] stores. It fails with
// [transport.ErrNotFound] when the message has been delivered or cancelled.
func (e *Endpoint) Cancel(ctx context.Context, r transport.Receipt) error {
	live := e.live.Load()
	if live == nil {
		return ErrNotRunning
	}
	c, ok := live.conn.(transport.Canceler)
	if !ok || r.Cancel == "" {
		return errors.New("cancel: the transport cannot call this message back")
	}
	return c.Cancel(ctx, r.Cancel)
}

// Handles reports whether the endpoint has a handler for m, a value of a registered message, or for
// a base type of m.
func (e *Endpoint) Handles(m any) bool {
	t, err := e.types.of(m)
	return err == nil && e.types.handles(t)
}

// Policy returns the resilience policy with that name, of Config.Recoverability.Policies or of one
// of its rules, with defaults for its zero fields. It reports false if there is none.
func (e *Endpoint) Policy(name string) (resilience.Policy, bool) {
	return e.cfg.Recoverability.NamedPolicy(name)
}

// CancelTimer removes the waiting timer with the name, at once or with [In] a transaction. If no
// timer waits, CancelTimer returns nil. A due timer may be on its way, and is handled. Options other
// than [In] have no effect.
func (e *Endpoint) CancelTimer(ctx context.Context, name string, opts ...TxOption) error {
	live := e.live.Load()
	if live == nil {
		return ErrNotRunning
	}
	var out pipeline.Outgoing
	for _, opt := range opts {
		opt.ApplySend(&out)
	}
	full := timer.Name{Name: name}
	err := live.checkTimer(full)
	switch {
	case err != nil:
	case out.Tx == noTx{}:
		err = errNilTx
	case out.Tx != nil && !live.joins:
		err = errNoTx
	default:
		err = live.Timers.Dispatch(ctx, out.Tx, live.Timers.Cancels([]string{full.Text()}))
	}
	if err != nil {
		return fmt.Errorf("cancel timer: %w", err)
	}
	return nil
}

// Host returns the host of the endpoint, with defaults. Its ID has 32 hexadecimal digits.
func (e *Endpoint) Host() Host { return Host{ID: e.host.HostID, Name: e.host.DisplayName} }

// Health returns the state of the endpoint.
func (e *Endpoint) Health() Health {
	h := Health{Endpoint: e.cfg.Name, Live: !e.over()}
	live := e.live.Load()
	switch {
	case !h.Live:
		h.bad("Run has returned")
	case !e.started.Load():
		h.bad("Run has not been called")
	case live == nil:
		h.bad("Run is starting")
	default:
		live.addTo(&h, e.warnings.All())
	}
	if since, lost, stalled := safelog.Stalled(e.cfg.Logger); stalled {
		h.Warnings = append(h.Warnings, fmt.Sprintf("the log takes no lines since %s, and %d are lost: what reads it has stopped",
			since.UTC().Format(time.RFC3339), lost))
	}
	h.Ready = len(h.Reasons) == 0
	return h
}

// Pause stops receiving from all queues of the endpoint, or from those named, and returns when
// every received message is settled or released. Handlers may finish; after StopTimeout their
// context is cancelled, as at the end of Run. Messages that no handler has begun return to the
// queue. Where a release counts as an attempt, they are begun in the first half of StopTimeout
// instead. Messages that arrive meanwhile wait at the broker until [Endpoint.Resume]. Pausing a
// paused queue does nothing.
//
// A paused endpoint can send. It is not ready: [Endpoint.Health] gives the reason. Other instances,
// and the queues of the driver itself, are not paused.
//
// When ctx ends first, Pause returns and the pause continues. A handler that calls Pause must use a
// ctx that ends, or a goroutine: otherwise it waits for itself. Pause returns [ErrNotRunning]
// before Run is ready and after Run's context has ended.
func (e *Endpoint) Pause(ctx context.Context, queues ...string) error {
	return e.control(queues, func(s source) error { return s.Pause(ctx) })
}

// Resume receives again from all queues of the endpoint, or from those named, with the concurrency
// set last. It returns when receiving has begun; where the broker refuses, the queue stays paused.
// Resuming a queue that is not paused does nothing. Resume returns [ErrNotRunning] as
// [Endpoint.Pause] does.
func (e *Endpoint) Resume(ctx context.Context, queues ...string) error {
	return e.control(queues, func(s source) error { return s.Resume(ctx) })
}

// SetConcurrency changes how many messages are handled at once, of each queue of the endpoint; n is
// from 1 to 65,536. More messages start at once; a lower number takes effect as handlers finish.
// SetConcurrency returns [ErrNotRunning] before Run is ready. It does not change
// [Config].Concurrency.
func (e *Endpoint) SetConcurrency(n int) error {
	if n < 1 || n > maxConcurrency {
		return fmt.Errorf("set concurrency to %d: it must be from 1 to %d", n, maxConcurrency)
	}
	return e.control(nil, func(s source) error { s.SetConcurrency(n); return nil })
}

// control calls act for the sources of queues, or for all, side by side.
func (e *Endpoint) control(queues []string, act func(source) error) error {
	live := e.live.Load()
	if live == nil {
		return ErrNotRunning
	}
	sources, err := live.named(queues)
	if err != nil {
		return err
	}
	errs := make([]error, len(sources))
	var all sync.WaitGroup
	for i, s := range sources {
		all.Go(func() { errs[i] = act(s) })
	}
	all.Wait()
	if err := errors.Join(errs...); !errors.Is(err, pump.ErrEnded) {
		return err
	}
	return ErrNotRunning
}

// Database returns the database of the handlers' records, for packages of this module such as
// schedule. It fails while the endpoint is not running; the result has the name, the log and the
// warnings of the endpoint nevertheless.
func (e *Endpoint) Database() (stateful.Database, error) {
	db, err := e.database()
	db.Endpoint, db.Log, db.Warnings = e.cfg.Name, e.cfg.Logger, &e.warnings
	return db, err
}

func (e *Endpoint) database() (stateful.Database, error) {
	live := e.live.Load()
	if live == nil {
		return stateful.Database{}, ErrNotRunning
	}
	redelivery := max(live.Limits.Lease, live.Limits.MaxHold)
	if live.Outbox != nil {
		redelivery += live.Outbox.Conn.Limits().Lease // of a row that a relay has received
	}
	db, err := stateful.DatabaseOn(live.database())
	db.Inbox, db.Redelivery = live.Inbox != nil, redelivery
	return db, err
}

// rememberRecords is how long ended records are kept.
func (e *Endpoint) rememberRecords() time.Duration {
	return max(0, cmp.Or(e.cfg.Remember, defaultRemember))
}

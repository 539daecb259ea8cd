// Package quarantine processes messages that may crash the process: a single message at a time,
// while no other message is processed.
package quarantine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/names"
	"github.com/holdfast-go/holdfast/endpoint/internal/notify"
	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

const (
	// lookPause is the time between looks at the quarantine while messages wait there. The time is
	// [recoverability.Quarantine].Idle while the queue is empty. An instance that moves a message
	// there looks at once.
	lookPause = 5 * time.Second
	// countDelay is the time for which a broker may not count a message yet.
	countDelay = time.Minute
	// firstGrace bounds the wait for running handlers, the first time. The bound doubles, and
	// suffices for long handlers in the end.
	firstGrace = 30 * time.Second
)

var errStillBusy = errors.New("handlers are still running")

// Config has the parts of a quarantine.
type Config struct {
	recoverability.Quarantine

	Queue       string // of the quarantine
	Conn        transport.Conn
	Limits      transport.Limits
	Names       *names.Queues
	Notifier    *notify.Notifier
	Group       *pump.Group // of the pumps that pause during a visit
	Budget      *pump.Budget
	StopTimeout time.Duration
	Log         *slog.Logger

	// Paused reports whether the endpoint's own queue is paused: the quarantine is paused too.
	Paused func() bool
	// StuckPause returns the pause after a visit that ended with a message that is stuck.
	StuckPause func() time.Duration
	// Handle processes a message. Handle calls stuck if the message could be neither settled nor
	// moved.
	Handle func(ctx context.Context, d transport.Delivery, slot *pump.Slot, stuck func())
}

// Quarantine is the queue of the messages over which the process may crash. The messages are handled
// exclusively: all other processing pauses before the first message is received, and one message is
// received at a time. So a delivery without a settlement is evidence against its message, never
// against a neighbour. The instances of an endpoint share the queue. A Quarantine is safe for
// concurrent use.
type Quarantine struct {
	Config

	moved   chan struct{} // holds a token when this process has moved a message there
	missing atomic.Bool   // there is no such queue: nothing is quarantined
	waiting atomic.Int64  // messages at the last look; -1 if unknown
	pump    atomic.Pointer[pump.Pump]
}

// New returns the quarantine of an endpoint.
func New(c Config) *Quarantine { return &Quarantine{Config: c, moved: make(chan struct{}, 1)} }

// Watch visits the quarantine until ctx ends.
func (q *Quarantine) Watch(ctx context.Context) {
	if q == nil {
		return
	}
	var moved time.Time // of the last move
	look := time.NewTimer(q.pause(moved))
	defer look.Stop()
	grace := backoff.Backoff{Min: firstGrace, Max: 24 * time.Hour}
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		case <-q.moved:
			moved = time.Now()
		}
		if !q.Paused() && q.look(ctx) {
			_ = backoff.Sleep(ctx, q.visit(ctx, &grace)) // the select above sees the end of ctx
		}
		look.Reset(q.pause(moved))
	}
}

// pause returns the time until the next look. A broker may count a message late, so a quarantine to
// which this instance has moved a message is not taken to be empty for a while. If the transport
// cannot inspect queues, each look interrupts all other processing.
func (q *Quarantine) pause(moved time.Time) time.Duration {
	if n := q.waiting.Load(); n > 0 || n == 0 && (q.missing.Load() || time.Since(moved) < countDelay) {
		return lookPause
	}
	return q.Idle
}

// Begin visits the quarantine before anything else is received: a crash would count against all
// messages in flight.
func (q *Quarantine) Begin(ctx context.Context) {
	if q != nil && q.look(ctx) {
		q.visit(ctx, &backoff.Backoff{Min: firstGrace, Max: firstGrace})
	}
}

// look reports whether messages may be waiting.
func (q *Quarantine) look(ctx context.Context) bool {
	inspector, ok := q.Conn.(transport.Inspector)
	if !ok {
		q.waiting.Store(-1)
		return !q.missing.Load()
	}
	stats, err := inspector.Inspect(ctx, q.Queue)
	q.find(ctx, err)
	if err != nil {
		return false
	}
	q.waiting.Store(stats[0].Ready)
	return stats[0].Ready != 0
}

// find records whether the queue exists, by the error of a call that needs it.
func (q *Quarantine) find(ctx context.Context, err error) {
	missing := errors.Is(err, transport.ErrNoQueue)
	if err != nil && !missing || q.missing.Swap(missing) == missing {
		return
	}
	if missing {
		q.Log.WarnContext(ctx, "the quarantine queue is missing: a poison message is redelivered without a limit; "+
			"create the queue with Config.Install or Endpoint.Install", slog.String("queue", q.Queue))
	} else {
		q.Log.InfoContext(ctx, "the quarantine queue exists again", slog.String("queue", q.Queue))
	}
}

// visit handles the messages in quarantine, exclusively. If handlers run on, visit gives up after
// the grace period, lets other messages be handled for as long, and waits longer the next time: a
// handler may wait for a message that is not received meanwhile. visit returns the pause before the
// next visit.
func (q *Quarantine) visit(ctx context.Context, grace *backoff.Backoff) (pause time.Duration) {
	most := grace.Next()
	waiting, cancel := context.WithTimeoutCause(ctx, most, errStillBusy)
	defer cancel()
	if err := q.Group.Exclusive(waiting); err != nil {
		if ctx.Err() == nil {
			q.Log.WarnContext(ctx, "messages in quarantine wait for long-running handlers: trying again",
				slog.String("queue", q.Queue), slog.Duration("after", most))
		}
		return most
	}
	defer q.Group.Shared()
	grace.Reset()
	if q.look(ctx) && !q.work(ctx) { // else another instance was faster
		return q.StuckPause()
	}
	return 0
}

// work receives and handles one message at a time until no message arrives. It reports false if a
// message is stuck.
func (q *Quarantine) work(ctx context.Context) (all bool) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	opened, err := q.Conn.OpenReceiver(ctx, transport.ReceiverOptions{Queue: q.Queue})
	q.find(ctx, err)
	if err != nil {
		return true // the next look tries again
	}
	var stuck atomic.Bool
	p := q.newPump(opened, end, func() {
		stuck.Store(true)
		end()
	})
	q.pump.Store(p)
	p.Run(ctx)
	err = opened.Close()
	q.pump.Store(nil)
	if err != nil {
		q.Log.WarnContext(ctx, "a receiver could not be closed", slog.String("queue", q.Queue), slog.Any("error", err))
	}
	return !stuck.Load()
}

// newPump returns the pump of a visit, which calls end when no message arrives, and stuck if a
// message is stuck.
func (q *Quarantine) newPump(opened transport.Receiver, end context.CancelFunc, stuck func()) *pump.Pump {
	return pump.New(pump.Config{
		Receiver: &receiver{Receiver: opened, end: end, ready: func(ctx context.Context) bool {
			return q.look(ctx) && q.waiting.Load() > 0
		}},
		Limits: q.Limits, Queue: q.Queue,
		Serial: true, Budget: q.Budget,
		StopTimeout: q.StopTimeout, Logger: q.Log,
		Handle: func(ctx context.Context, d transport.Delivery, slot *pump.Slot) {
			q.Handle(ctx, d, slot, stuck)
		},
	})
}

// Status is the state of a quarantine.
type Status struct {
	Missing bool        // there is no such queue
	Waiting int64       // messages in the queue at the last look; -1 if unknown
	Visit   *pump.Stats // of the messages that are received now; nil between visits
}

// Status returns the state of the quarantine.
func (q *Quarantine) Status() Status {
	s := Status{Missing: q.missing.Load(), Waiting: q.waiting.Load()}
	if p := q.pump.Load(); p != nil {
		stats := p.Stats()
		s.Visit = &stats
	}
	return s
}

const (
	// firstWait is how long the first message may take to arrive, and nextWait each
	// that follows, before the quarantine is taken to be empty.
	firstWait = time.Second
	nextWait  = 300 * time.Millisecond
	// slowWait bounds the wait for the first message of a slow broker, as long as the broker
	// counts a message that is ready.
	slowWait = 30 * time.Second
	// drainTime bounds the wait for the messages that the driver has prefetched.
	drainTime = 10 * time.Second
)

// receiver receives from the quarantine until no message arrives, and then ends the
// visit. It cancels a Receive, never the visit: an answer on the way arrives in a pump that is
// not stopping, so that its message is handled.
type receiver struct {
	transport.Receiver
	ready func(ctx context.Context) bool // reports whether the broker counts a message that is ready
	end   context.CancelFunc             // of the visit

	// The pump calls Receive once at a time.
	began    time.Time // of the wait for the next message; zero before
	came     bool      // a message has been received
	draining bool      // the broker sends no more: only the driver's prefetched messages are left
}

// Receive calls Receive of the driver, and ends the visit after a wait that was long enough.
func (r *receiver) Receive(ctx context.Context, limit int) ([]transport.Delivery, error) {
	if r.began.IsZero() {
		r.began = time.Now()
	}
	ds, err := r.receive(ctx, limit)
	switch {
	case len(ds) > 0:
		r.came, r.began = true, time.Time{}
	case r.draining, time.Since(r.began) >= firstWait: // the latter where Receive fails
		r.end()
	}
	return ds, err
}

func (r *receiver) receive(ctx context.Context, limit int) ([]transport.Delivery, error) {
	if r.draining {
		return r.drain(ctx, limit)
	}
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	came, began := r.came, r.began
	go func() {
		r.wait(waiting, came, began)
		stop()
	}()
	ds, err := r.Receiver.Receive(waiting, limit)
	if len(ds) > 0 || waiting.Err() == nil || ctx.Err() != nil {
		return ds, err
	}
	r.draining = true
	return r.drain(ctx, limit)
}

// wait returns when no message is expected any more, or when ctx ends.
func (r *receiver) wait(ctx context.Context, came bool, began time.Time) {
	if came {
		_ = backoff.Sleep(ctx, nextWait-time.Since(began)) // the caller sees the end of ctx
		return
	}
	for backoff.Sleep(ctx, firstWait) == nil {
		if time.Since(began) >= slowWait || !r.ready(ctx) {
			return
		}
	}
}

// drain receives the messages that the driver has prefetched, where releasing them would count as
// an attempt.
func (r *receiver) drain(ctx context.Context, limit int) ([]transport.Delivery, error) {
	ctx, cancel := context.WithTimeout(ctx, drainTime)
	defer cancel()
	ds := r.Drain(ctx, limit)
	if len(ds) == 0 {
		return nil, context.Canceled
	}
	return ds, nil
}

// Drain calls Drain of the driver, if the driver has the method.
func (r *receiver) Drain(ctx context.Context, limit int) []transport.Delivery {
	if d, ok := r.Receiver.(transport.Drainer); ok {
		return d.Drain(ctx, limit)
	}
	return nil
}

// Renew calls Renew of the driver, which has the method if deliveries are leased.
func (r *receiver) Renew(ctx context.Context, ds []transport.Delivery) []error {
	if renewer, ok := r.Receiver.(transport.Renewer); ok {
		return renewer.Renew(ctx, ds)
	}
	return nil
}

// Suspects reports whether a message that was delivered before is to be moved to quarantine instead
// of being handled. If the broker does not count, a message is suspected that neither failed nor lost
// its lease here.
func (q *Quarantine) Suspects(d *settle.Delivery) bool {
	if q.missing.Load() {
		return false
	}
	known, ok := d.Failures.Known(d.FailureKey())
	a := d.Received.Attempt()
	if !a.Exact {
		return !ok
	}
	return a.N-known.Failed > q.After
}

// Move completes a suspect with a copy in quarantine, and has r report the move. Move returns
// [transport.ErrNoQueue] if the quarantine is missing: the message is then handled.
// Move returns a [copies.CopyError] if the quarantine refuses the copy.
func (q *Quarantine) Move(ctx context.Context, d *settle.Delivery, r notify.Reporter) error {
	n := d.Received.Attempt().N
	err := q.move(ctx, d, r)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, transport.ErrNoQueue):
		q.find(ctx, err)
		d.LogError(ctx, slog.LevelWarn, "a message cannot be quarantined and is handled like any other",
			err, slog.Int("attempt", n))
		return err
	case copies.OfMessage(err):
		return &copies.CopyError{Doing: fmt.Sprintf(
			"the process may crash over the message, which was delivered %d times, and it could not be moved to quarantine", n,
		), Err: err}
	}
	return fmt.Errorf("move to quarantine: %w", err)
}

func (q *Quarantine) move(ctx context.Context, d *settle.Delivery, r notify.Reporter) error {
	n := d.Received.Attempt().N
	headers := fault.QuarantineHeaders(d.Original.Headers, q.Names.Address(d.Queue), n)
	place := q.Notifier.Next(d.FailureKey())
	report := func() {}
	defer func() { r.Report(place, report) }()
	if err := d.Complete(ctx, nil, []transport.Operation{d.CopyTo(q.Queue, headers, 0)}); err != nil {
		return err //nolint:wrapcheck // Move wraps the error
	}
	d.Slot.Free()
	if d.LostLease() {
		return nil
	}
	select {
	case q.moved <- struct{}{}:
	default: // there is a token
	}
	d.Log.WarnContext(ctx, "the process may crash over a message: it is moved to quarantine",
		slog.String("message", d.LogID()), slog.Int("attempt", n), slog.String("queue", q.Queue))
	f := d.Facts(fmt.Errorf("delivered %d times: the process may crash over it", n))
	report = func() {
		q.Notifier.Notify(ctx, recoverability.Notification{Kind: recoverability.Quarantined, To: q.Queue, Failure: &f})
	}
	return nil
}

// Message is a message that was received from the quarantine. A Message is not safe for concurrent
// use.
type Message struct {
	Before int  // deliveries in the message's own queue, before it was quarantined
	Parked bool // delivered too often in quarantine: the process crashes over the message
	Stuck  bool // the message could be neither settled nor moved

	delivery *settle.Delivery
}

// Receive removes the headers that the quarantine added: for handlers and copies the message is one
// of the queue where it was suspected.
func (q *Quarantine) Receive(d *settle.Delivery) *Message {
	m, own, a := &Message{delivery: d}, *d.Original, d.Received.Attempt()
	var queue string
	own.Headers, queue, m.Before = fault.LeaveQuarantine(own.Headers)
	d.Queue, d.Original = q.Names.Of(cmp.Or(queue, d.Queue)), &own
	m.Parked = a.Exact && a.N > q.Crashes
	return m
}

// CrashLoop returns the error of a message that is parked.
func (m *Message) CrashLoop() error {
	return recoverability.Unrecoverable(&recoverability.CrashLoopError{
		Queue: m.delivery.Queue, Attempts: m.Before, Crashes: m.delivery.Received.Attempt().N - 1,
	})
}

// ReturnToOrigin moves a message that is stuck in quarantine back to its own queue, where the
// attempts begin anew, so that other messages do not wait. A parked message stays for the next
// visit.
func (m *Message) ReturnToOrigin(ctx context.Context) {
	d := m.delivery
	m.Stuck = true
	if !m.Parked {
		again := d.CopyTo(d.Queue, d.Original.Headers.Clone(), 0)
		err := d.Complete(ctx, nil, []transport.Operation{again})
		if err == nil {
			return
		}
		d.LogError(ctx, slog.LevelWarn, "a message could not be moved back from quarantine", err)
	}
	d.Retry(ctx)
}

// Forbids returns why an action cannot be carried out in quarantine; "" if the action can, or if m
// is nil. Retried at once, the message would seem to have crashed the process, and a parked message
// would crash it again.
func (m *Message) Forbids(action recoverability.Action) string {
	if m == nil {
		return ""
	}
	switch action.(type) {
	case recoverability.Retry:
		return "nothing is retried at once in quarantine"
	case recoverability.RetryInline:
		return "nothing is retried inline in quarantine, where all others wait"
	case recoverability.Delay:
		if m.Parked {
			return "the process crashes over the message"
		}
	case recoverability.MoveToError, recoverability.DeadLetter, recoverability.Discard:
	}
	return ""
}

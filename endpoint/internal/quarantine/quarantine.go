// Package quarantine processes messages that may crash the process: a single message at a time,
// while no other message is processed.
package quarantine

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/names"
	"github.com/holdfast-go/holdfast/endpoint/internal/notify"
	"github.com/holdfast-go/holdfast/internal/backoff"
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
	if err != nil {
		q.find(ctx, err)
		return false
	}
	q.find(ctx, nil)
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

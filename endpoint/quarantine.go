package endpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/transport"
)

const (
	// quarantineLook is the time between looks at the quarantine while messages wait in it. While
	// it is empty [recoverability.Quarantine].Idle is. An instance that moves a message there looks
	// at once.
	quarantineLook = 5 * time.Second
	// quarantineLate is the time for which a broker may not count a message yet.
	quarantineLate = time.Minute
	// quarantineGrace bounds the wait for running handlers, the first time. It doubles, so that it
	// suffices for long ones in the end.
	quarantineGrace = 30 * time.Second
)

var errStillBusy = errors.New("handlers are still running")

// quarantine is the queue of the messages over which the process may crash. They are handled
// exclusively: all other processing pauses before the first one is received, and one is received
// after the other. So a delivery that is not settled is evidence against that message, never
// against a neighbour. The instances of an endpoint share the queue.
type quarantine struct {
	live  *live
	queue string
	moved chan struct{} // holds a token when this process has moved a message there

	missing atomic.Bool  // there is no such queue: nothing is quarantined
	waiting atomic.Int64 // messages in it at the last look; -1 if unknown
	pump    atomic.Pointer[pump.Pump]
}

// quarantineQueue returns the name of the endpoint's quarantine, or "".
func (e *Endpoint) quarantineQueue() string {
	if e.cfg.SendOnly || e.cfg.Transactions == None || e.recoverability.Quarantine.After == None {
		return ""
	}
	return e.cfg.Name + quarantineSuffix
}

const quarantineSuffix = ".quarantine"

// watch visits the quarantine until ctx ends.
func (q *quarantine) watch(ctx context.Context) {
	if q == nil {
		return
	}
	var moved time.Time // of the last move
	look := time.NewTimer(q.pause(moved))
	defer look.Stop()
	grace := backoff.Backoff{Min: quarantineGrace, Max: 24 * time.Hour}
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		case <-q.moved:
			moved = time.Now()
		}
		// The quarantine is paused with the endpoint's own queue.
		own := q.live.names.Of(q.live.e.cfg.Name)
		paused := func(s source) bool { return s.Queue() == own && s.Paused() }
		if !slices.ContainsFunc(q.live.sources, paused) && q.look(ctx) {
			_ = backoff.Sleep(ctx, q.visit(ctx, &grace)) // the select above sees the end of ctx
		}
		look.Reset(q.pause(moved))
	}
}

// pause returns the time until the next look. A broker may count a message late, so a quarantine to
// which this instance has moved a message is not taken to be empty for a while. If the transport
// cannot inspect queues, each look interrupts all other processing.
func (q *quarantine) pause(moved time.Time) time.Duration {
	if n := q.waiting.Load(); n > 0 || n == 0 && (q.missing.Load() || time.Since(moved) < quarantineLate) {
		return quarantineLook
	}
	return q.live.recoverability.Quarantine.Idle
}

// begin visits the quarantine before anything else is received: a crash would count against all
// messages in flight.
func (q *quarantine) begin(ctx context.Context) {
	if q != nil && q.look(ctx) {
		q.visit(ctx, &backoff.Backoff{Min: quarantineGrace, Max: quarantineGrace})
	}
}

// look reports whether messages may be waiting.
func (q *quarantine) look(ctx context.Context) bool {
	inspector, ok := q.live.conn.(transport.Inspector)
	if !ok {
		q.waiting.Store(-1)
		return !q.missing.Load()
	}
	stats, err := inspector.Inspect(ctx, q.queue)
	if err != nil {
		q.find(ctx, err)
		return false
	}
	q.find(ctx, nil)
	q.waiting.Store(stats[0].Ready)
	return stats[0].Ready != 0
}

// find records whether the queue exists, by the error of a call that needs it.
func (q *quarantine) find(ctx context.Context, err error) {
	missing := errors.Is(err, transport.ErrNoQueue)
	if err != nil && !missing || q.missing.Swap(missing) == missing {
		return
	}
	if missing {
		q.log().WarnContext(ctx, "the quarantine queue is missing: a poison message is redelivered without a limit; "+
			"create the queue with Config.Install or Endpoint.Install", slog.String("queue", q.queue))
	} else {
		q.log().InfoContext(ctx, "the quarantine queue exists again", slog.String("queue", q.queue))
	}
}

// visit handles the messages in quarantine, exclusively. If handlers run on it gives up after the
// grace period, lets the others continue for as long, and waits longer the next time: a handler may
// be waiting for a message that is not received meanwhile. It returns the pause before the next
// visit.
func (q *quarantine) visit(ctx context.Context, grace *backoff.Backoff) (pause time.Duration) {
	most := grace.Next()
	waiting, cancel := context.WithTimeoutCause(ctx, most, errStillBusy)
	defer cancel()
	if err := q.live.group.Exclusive(waiting); err != nil {
		if ctx.Err() == nil {
			q.log().WarnContext(ctx, "messages in quarantine wait for long-running handlers: trying again",
				slog.String("queue", q.queue), slog.Duration("after", most))
		}
		return most
	}
	defer q.live.group.Shared()
	grace.Reset()
	if q.look(ctx) && !q.work(ctx) { // else another instance was faster
		return q.live.requeues.next()
	}
	return 0
}

// work receives and handles one message after the other until none arrives. It reports false if one
// is stuck.
func (q *quarantine) work(ctx context.Context) (all bool) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	receiver, err := q.live.conn.OpenReceiver(ctx, transport.ReceiverOptions{Queue: q.queue})
	q.find(ctx, err)
	if err != nil {
		return true // the next look tries again
	}
	var stuck atomic.Bool
	p := pump.New(pump.Config{
		Receiver: &quarantineReceiver{Receiver: receiver, end: end, ready: func(ctx context.Context) bool {
			return q.look(ctx) && q.waiting.Load() > 0
		}},
		Limits: q.live.limits, Queue: q.queue,
		Serial: true, Budget: q.live.budget,
		StopTimeout: q.live.e.cfg.StopTimeout, Logger: q.log(),
		Handle: func(ctx context.Context, d transport.Delivery, slot *pump.Slot) {
			q.live.handleExclusively(ctx, d, slot, func() {
				stuck.Store(true)
				end()
			})
		},
	})
	q.pump.Store(p)
	p.Run(ctx)
	err = receiver.Close()
	q.pump.Store(nil)
	if err != nil {
		q.log().WarnContext(ctx, "a receiver could not be closed", slog.String("queue", q.queue), slog.Any("error", err))
	}
	return !stuck.Load()
}

func (q *quarantine) log() *slog.Logger { return q.live.e.cfg.Logger }

// addTo adds the quarantine to h.
func (q *quarantine) addTo(h *Health) {
	if q.missing.Load() {
		h.Warnings = append(h.Warnings,
			fmt.Sprintf("there is no queue %q: a poison message is redelivered without a limit", q.queue))
		return
	}
	h.Quarantined = q.waiting.Load()
	if p := q.pump.Load(); p != nil {
		h.Queues = append(h.Queues, queueHealth(q.queue, p.Stats()))
		q.live.addStuck(h, q.live.names.Of(q.live.e.cfg.Name), 1)
	}
}

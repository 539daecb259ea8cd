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
	// quarantineLook is how often the quarantine is looked at, and quarantineBlind how often where
	// the transport cannot look into queues: all has to rest for it.
	quarantineLook  = 5 * time.Second
	quarantineBlind = time.Minute
	// quarantinePatience is how long handlers that run are waited for, the first time. It
	// doubles, so that long ones are waited for in the end.
	quarantinePatience = 30 * time.Second
)

var errStillBusy = errors.New("handlers are still running")

// quarantine is the queue of the messages that may be what ends the process. They are handled
// alone: first everything else in the process comes to rest, only then one message after the other
// is received. So a hand-out that comes to no end tells of that message, never of a neighbour.
// All instances of an endpoint share the queue, and each does this for itself.
type quarantine struct {
	e     *Endpoint
	live  *live
	group *pump.Group
	queue string
	moved chan struct{} // holds a token when this process has moved a message there

	missing atomic.Bool  // there is no such queue: the guard is off
	waiting atomic.Int64 // messages in it, when it was last looked at; -1 when that cannot be told
	pump    atomic.Pointer[pump.Pump]
}

// quarantineQueue is the name of the endpoint's quarantine, or "".
func (e *Endpoint) quarantineQueue() string {
	if e.cfg.SendOnly || e.cfg.Transactions == None || !e.recoverability.Quarantine.On() {
		return ""
	}
	return e.cfg.Name + quarantineSuffix
}

const quarantineSuffix = ".quarantine"

func (e *Endpoint) newQuarantine(live *live) *quarantine {
	queue := e.quarantineQueue()
	if queue == "" {
		return nil
	}
	return &quarantine{e: e, live: live, group: live.group, queue: queue, moved: make(chan struct{}, 1)}
}

// watch looks after the quarantine until ctx ends.
func (q *quarantine) watch(ctx context.Context) {
	if q == nil {
		return
	}
	every := quarantineLook
	if _, ok := q.live.conn.(transport.Inspector); !ok {
		every = quarantineBlind
	}
	look := time.NewTicker(every)
	defer look.Stop()
	patience := backoff.Backoff{Min: quarantinePatience, Max: 24 * time.Hour}
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		case <-q.moved:
		}
		if !q.paused() && q.look(ctx) {
			_ = backoff.Sleep(ctx, q.visit(ctx, &patience)) // the end of ctx is seen above
		}
	}
}

// paused tells whether the endpoint's own queue is, and with it the quarantine.
func (q *quarantine) paused() bool {
	return slices.ContainsFunc(q.live.sources, func(s source) bool { return s.Queue() == q.e.cfg.Name && s.Paused() })
}

// begin works through what is there before anything else is received: were it to end the process
// again, that would count against whatever else is in hand.
func (q *quarantine) begin(ctx context.Context) {
	if q != nil && q.look(ctx) {
		q.visit(ctx, &backoff.Backoff{Min: quarantinePatience, Max: quarantinePatience})
	}
}

// look tells whether something may wait.
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

// ready reports whether the broker counts a message that is ready; false where it cannot be asked, or does not know.
func (q *quarantine) ready(ctx context.Context) bool {
	return q.look(ctx) && q.waiting.Load() > 0
}

// find notes whether there is such a queue, by how a call that needs it has ended.
func (q *quarantine) find(ctx context.Context, err error) {
	missing := errors.Is(err, transport.ErrNoQueue)
	if err != nil && !missing || q.missing.Swap(missing) == missing {
		return
	}
	if missing {
		q.log().WarnContext(ctx, "there is no quarantine, so that a message that ends the process comes back without a limit: "+
			"create the queue with Config.Install or Endpoint.Install", slog.String("queue", q.queue))
	} else {
		q.log().InfoContext(ctx, "there is a quarantine again", slog.String("queue", q.queue))
	}
}

// visit handles what is there, alone. While handlers run on it gives up after a while, lets
// the others go on for as long, and has more patience the next time: one of them may be
// waiting for what cannot be received meanwhile. It returns how long to wait before the next visit.
func (q *quarantine) visit(ctx context.Context, patience *backoff.Backoff) (pause time.Duration) {
	most := patience.Next()
	waiting, cancel := context.WithTimeoutCause(ctx, most, errStillBusy)
	defer cancel()
	if err := q.group.Exclusive(waiting); err != nil {
		if ctx.Err() == nil {
			q.log().WarnContext(ctx, "messages in quarantine wait for handlers that take long: trying again",
				slog.String("queue", q.queue), slog.Duration("after", most))
		}
		return most
	}
	defer q.group.Shared()
	patience.Reset()
	if q.look(ctx) && !q.work(ctx) { // else somebody was quicker
		return q.live.holding.next()
	}
	return 0
}

// work receives and handles one message after the other until none comes. It is false when one could
// not be dealt with.
func (q *quarantine) work(ctx context.Context) (all bool) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	receiver, err := q.live.conn.OpenReceiver(ctx, transport.ReceiverOptions{Queue: q.queue})
	q.find(ctx, err)
	if err != nil {
		return true // it is tried again after the next look
	}
	var stuck atomic.Bool
	p := pump.New(pump.Config{
		Receiver: &quarantineReceiver{Receiver: receiver, ready: q.ready, end: end}, Limits: q.live.limits, Queue: q.queue,
		Serial: true, Budget: q.live.budget,
		StopTimeout: q.e.cfg.StopTimeout, Logger: q.log(),
		Handle: func(ctx context.Context, d transport.Delivery, slot *pump.Slot) {
			q.e.handleExclusively(ctx, q.live, d, slot, func() {
				stuck.Store(true)
				end()
			})
		},
	})
	q.pump.Store(p)
	err = errors.Join(p.Run(ctx), receiver.Close())
	q.pump.Store(nil)
	if err != nil {
		q.log().WarnContext(ctx, "a receiver could not be closed in order", slog.String("queue", q.queue), slog.Any("error", err))
	}
	return !stuck.Load()
}

// add notes that a message was moved there.
func (q *quarantine) add() {
	select {
	case q.moved <- struct{}{}:
	default:
	}
}

func (q *quarantine) log() *slog.Logger { return q.e.cfg.Logger }

// addTo adds the quarantine to h.
func (q *quarantine) addTo(h *Health) {
	if q.missing.Load() {
		h.Warnings = append(h.Warnings, fmt.Sprintf("there is no queue %q: a message that ends the process comes back without a limit", q.queue))
		return
	}
	h.Quarantined = q.waiting.Load()
	if p := q.pump.Load(); p != nil {
		s := p.Stats()
		h.Queues = append(h.Queues, queueHealth(q.queue, s))
	}
}

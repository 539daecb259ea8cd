package endpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport"
)

// satellites are the driver's own queues, each with a pump of its own.
func (e *Endpoint) satellites(ctx context.Context, live *live) ([]*lane, error) {
	s, ok := live.conn.(transport.Satellites)
	if !ok {
		return nil, nil
	}
	var lanes []*lane
	for _, sat := range s.Satellites() {
		l, err := e.openLane(ctx, live, transport.ReceiverOptions{Queue: sat.Queue}, max(1, sat.Concurrency), e.satellite(live, sat))
		if err != nil {
			return lanes, fmt.Errorf("satellite: %w", err)
		}
		l.satellite = true
		lanes = append(lanes, l)
	}
	return lanes, nil
}

// satellite is what the pump calls for each message of a driver's own queue. A failure keeps
// the message where it is; the pause keeps it from spinning.
func (e *Endpoint) satellite(live *live, sat transport.Satellite) func(context.Context, transport.Delivery, *pump.Slot) {
	return func(ctx context.Context, d transport.Delivery, _ *pump.Slot) {
		in := &incoming{e: e, live: live, delivery: d, queue: sat.Queue}
		in.prepare()
		if err := in.relay(ctx, sat); err != nil {
			e.cfg.Logger.ErrorContext(ctx, "a message of the transport's own queue could not be dealt with",
				slog.String("queue", sat.Queue), slog.String("message", in.id), slog.Any("error", err))
			in.hold(ctx, err)
		}
	}
}

// relay sends what the driver makes of the message, and completes it.
func (in *incoming) relay(ctx context.Context, sat transport.Satellite) (err error) {
	defer catchPanic(&err)
	ops, err := sat.Handle(ctx, in.receive.Message)
	if dead, ok := errors.AsType[*transport.DeadLetteredError](err); ok {
		return in.bury(ctx, dead)
	}
	if err != nil {
		return err
	}
	return in.finish(ctx, ops)
}

// bury moves a message to the error queue that the broker gave up. There is nothing to decide any more,
// so the policy is not asked. How often it was handed out is not known.
func (in *incoming) bury(ctx context.Context, dead *transport.DeadLetteredError) error {
	in.queue = cmp.Or(dead.Queue, in.queue)
	rec := &pipeline.Recover{Receive: in.renewSession(), Failure: in.facts(dead)}
	rec.Failure.AttemptExact = false
	rec.Action = in.toErrorQueue()
	rec.Fault = in.faultHeaders(ctx, rec.Failure)
	return in.conclude(ctx, rec)
}

package endpoint

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/transport"
)

type (
	handleFunc  = func(context.Context, transport.Delivery, *pump.Slot)
	arrivedFunc = func(context.Context, []pump.Slot) // nil: see [pump.Config]
)

// source is an input queue of the endpoint, with the state of the outages.
type source struct {
	*pump.Source
	reception *pump.Reception
}

// openSource opens a source that ends with ctx.
func (l *live) openSource(
	ctx context.Context, opts transport.ReceiverOptions, concurrency int, handle handleFunc, arrived arrivedFunc,
) (source, error) {
	r := &pump.Reception{Queue: opts.Queue}
	s, err := pump.OpenSource(ctx, pump.SourceConfig{
		Config: pump.Config{
			Limits: l.Limits, Queue: opts.Queue, Budget: l.budget, Concurrency: concurrency,
			Handle: handle, Arrived: arrived, StopTimeout: l.e.cfg.StopTimeout, Logger: l.e.cfg.Logger, OnReceive: l.watch(ctx, r),
		},
		Group: l.group,
		Open: func(ctx context.Context) (transport.Receiver, error) {
			receiver, err := l.conn.OpenReceiver(ctx, opts)
			_, impossible := errors.AsType[*transport.NameError](err)
			if errors.Is(err, transport.ErrNoQueue) && !impossible && !l.e.cfg.Install {
				err = fmt.Errorf("%w: create it with Config.Install or Endpoint.Install", err)
			}
			if err != nil {
				return nil, fmt.Errorf("receive from %q: %w", opts.Queue, err)
			}
			return receiver, nil
		},
	})
	return source{s, r}, err
}

// watch returns the function that the pump calls after each Receive that failed, and after the
// first that succeeded.
func (l *live) watch(ctx context.Context, r *pump.Reception) func(error) {
	return func(err error) { l.Notifier.Outage(ctx, r.Queue, r.Note(err)) }
}

// addTo adds the source's queue to h.
func (s source) addTo(h *Health) {
	h.Queues = append(h.Queues, queueHealth(s.Queue(), s.Stats()))
	if s.Paused() {
		h.bad("receiving from %q is paused", s.Queue())
	} else if since, err := s.reception.Failing(); err != nil {
		h.bad("receiving from %q has been failing since %s: %v", s.Queue(), since.UTC().Format(time.RFC3339), err)
	}
}

// serial returns the function that sets whether the sources start one message at a time.
func serial(sources []source) func(bool) {
	return func(on bool) {
		for _, s := range sources {
			s.SetSerial(on)
		}
	}
}

func closeAll(sources []source) error {
	var errs []error
	for _, s := range sources {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

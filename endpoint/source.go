package endpoint

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/transport"
)

type handleFunc = func(context.Context, transport.Delivery, *pump.Slot)

// source is a queue from which the endpoint receives, with the state of its outages.
type source struct {
	*pump.Source
	reception *reception
}

// openSource opens a source that ends with ctx.
func (e *Endpoint) openSource(ctx context.Context, live *live, opts transport.ReceiverOptions, concurrency int, handle handleFunc) (source, error) {
	r := &reception{queue: opts.Queue}
	s, err := pump.OpenSource(ctx, pump.SourceConfig{
		Config: pump.Config{
			Limits: live.limits, Queue: opts.Queue, Budget: live.budget, Concurrency: concurrency,
			Handle: handle, StopTimeout: e.cfg.StopTimeout, Logger: e.cfg.Logger, OnReceive: e.watch(ctx, r),
		},
		Group: live.group,
		Open: func(ctx context.Context) (transport.Receiver, error) {
			return e.openReceiver(ctx, live, opts)
		},
	})
	return source{s, r}, err
}

func (e *Endpoint) openReceiver(ctx context.Context, live *live, opts transport.ReceiverOptions) (transport.Receiver, error) {
	receiver, err := live.conn.OpenReceiver(ctx, opts)
	if errors.Is(err, transport.ErrNoQueue) && !e.cfg.Install {
		err = fmt.Errorf("%w: create it with Config.Install or Endpoint.Install", err)
	}
	if err != nil {
		return nil, fmt.Errorf("receive from %q: %w", opts.Queue, err)
	}
	return receiver, nil
}

// addTo adds the source's queue to h.
func (s source) addTo(h *Health) {
	h.Queues = append(h.Queues, queueHealth(s.Queue(), s.Stats()))
	if s.Paused() {
		h.bad("receiving from %q is paused", s.Queue())
	} else if since, err := s.reception.failing(); err != nil {
		h.bad("receiving from %q has been failing since %s: %v", s.Queue(), since.UTC().Format(time.RFC3339), err)
	}
}

func closeAll(sources []source) error {
	var errs []error
	for _, s := range sources {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

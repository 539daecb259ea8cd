package endpoint

import (
	"context"
	"errors"
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

// addTo adds the source's queue to h.
func (s source) addTo(h *Health) {
	h.Queues = append(h.Queues, queueHealth(s.Queue(), s.Stats()))
	if s.Paused() {
		h.bad("receiving from %q is paused", s.Queue())
	} else if since, err := s.reception.Failing(); err != nil {
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

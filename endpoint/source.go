package endpoint

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/transport"
)

type handleFunc = func(context.Context, transport.Delivery, *pump.Slot)

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

const (
	// satelliteTimeout bounds one search for the driver's own queues.
	satelliteTimeout = 30 * time.Second
	// satelliteMin and satelliteMax bound the pause before the next search.
	satelliteMin = 100 * time.Millisecond
	satelliteMax = 10 * time.Second
)

// satellites are the driver's own queues, each with a pump. The search for the queues goes on until
// the broker has answered for all.
type satellites struct {
	finder transport.Satellites // nil: the driver has none
	log    *slog.Logger
	watch  func(context.Context, *pump.Reception) func(error)
	open   func(context.Context, transport.Satellite) (source, error)
	search pump.Reception // fails while the search does
	known  []string       // queues that are open or awaited

	mu      sync.Mutex // guards the rest
	sources []source
	accepts string // the first of the queues that accepts messages of the endpoint; "" for none
}

// run receives from the queues until ctx ends.
func (s *satellites) run(ctx context.Context) error {
	if s.finder == nil {
		return nil
	}
	var (
		running sync.WaitGroup
		note    = s.watch(ctx, &s.search)
		pause   = backoff.Backoff{Min: satelliteMin, Max: satelliteMax}
	)
	for failed := false; ; failed = true {
		err := s.find(ctx, &running)
		if ctx.Err() != nil {
			break
		}
		note(err)
		if err == nil {
			if failed {
				s.log.InfoContext(ctx, "all of the transport's own queues were found, and are received from")
			}
			break
		}
		if !failed {
			s.log.WarnContext(ctx, "a queue of the transport's own could not be looked for; until it is found, it is not received from",
				slog.Any("error", err))
		}
		if pause.Wait(ctx) != nil {
			break
		}
	}
	running.Wait()
	return closeAll(s.sources)
}

// find opens, or awaits, each queue that is found and not known yet.
func (s *satellites) find(ctx context.Context, running *sync.WaitGroup) error {
	within, cancel := context.WithTimeout(ctx, satelliteTimeout)
	defer cancel()
	found, err := s.finder.Satellites(within)
	errs := []error{err}
	for _, sat := range found {
		if slices.Contains(s.known, sat.Queue) {
			continue
		}
		if sat.Wait != nil {
			running.Go(func() { s.await(ctx, sat) })
		} else if opened, err := s.receive(ctx, sat); err == nil {
			running.Go(func() { opened.Run(ctx) })
		} else {
			errs = append(errs, err)
			continue
		}
		s.known = append(s.known, sat.Queue)
	}
	return errors.Join(errs...)
}

// await receives from a queue when it exists.
func (s *satellites) await(ctx context.Context, sat transport.Satellite) {
	pause := backoff.Backoff{Min: satelliteMin, Max: satelliteMax}
	for sat.Wait(ctx) == nil {
		opened, err := s.receive(ctx, sat)
		if err == nil {
			opened.Run(ctx)
			return
		}
		if ctx.Err() == nil {
			s.log.WarnContext(ctx, "a queue of the transport's own is not received from: it is tried again",
				slog.String("queue", sat.Queue), slog.Any("error", err))
		}
		if pause.Wait(ctx) != nil {
			return
		}
	}
}

// receive opens the source of a queue.
func (s *satellites) receive(ctx context.Context, sat transport.Satellite) (source, error) {
	opened, err := s.open(ctx, sat)
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.sources = append(s.sources, opened)
		if sat.Accepts && s.accepts == "" {
			s.accepts = sat.Queue
		}
	}
	return opened, err
}

// all returns the sources of the queues found so far.
func (s *satellites) all() []source {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.sources)
}

// accepting returns the queue that takes the endpoint's waiting messages; "" if there is no such
// queue.
func (s *satellites) accepting() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.accepts
}

func (s *satellites) addTo(h *Health) {
	for _, own := range s.all() {
		own.addTo(h)
	}
	if since, err := s.search.Failing(); err != nil {
		h.bad("the search for the transport's own queues has been failing since %s: %v", since.UTC().Format(time.RFC3339), err)
	}
}

package endpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"

	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/transport"
)

// RunAll runs endpoints side by side until ctx ends, each with its own transport and retries. Their
// transports may share connections, as those on one PostgreSQL do. An endpoint that fails does not
// stop the others: its error is logged at once. RunAll returns all errors, joined.
//
// Endpoints with one name on one transport receive from one queue, so they must have the same
// handlers. Otherwise an endpoint would receive messages that it does not handle, and RunAll fails
// before any endpoint runs.
func RunAll(ctx context.Context, endpoints ...*Endpoint) error {
	if err := checkNames(endpoints); err != nil {
		for _, e := range endpoints {
			refuse(e, err)
		}
		return err
	}
	errs := make([]error, len(endpoints))
	var wg sync.WaitGroup
	warnOfHosts(ctx, endpoints)
	group, shared := pump.NewGroup(), new(transport.Shared)
	for i, e := range endpoints {
		wg.Go(func() {
			if errs[i] = e.run(ctx, group, shared); errs[i] != nil {
				e.cfg.Logger.ErrorContext(ctx, "an endpoint has ended, others may run on",
					slog.String("endpoint", e.cfg.Name), slog.Any("error", errs[i]))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// checkNames returns an error for endpoints with one input queue and different handlers.
func checkNames(endpoints []*Endpoint) error {
	var errs []error
	for i, e := range endpoints {
		other := slices.IndexFunc(endpoints[:i], func(other *Endpoint) bool { return other != e && shareQueue(other, e) })
		if other >= 0 && !slices.Equal(handled(endpoints[other]), handled(e)) {
			errs = append(errs, fmt.Errorf("endpoint %q: two endpoints of RunAll have that name on one transport, and other handlers: "+
				"each would receive messages for the other one: give each a name of its own, or one endpoint the handlers of both", e.cfg.Name))
		}
	}
	return errors.Join(errs...)
}

// shareQueue reports whether two endpoints have one input queue.
func shareQueue(e, other *Endpoint) bool {
	if e.cfg.SendOnly || other.cfg.SendOnly || e.cfg.Name != other.cfg.Name {
		return false
	}
	// A value without comparison makes == panic.
	own, its := reflect.ValueOf(e.cfg.Transport), reflect.ValueOf(other.cfg.Transport)
	return own.Comparable() && its.Comparable() && e.cfg.Transport == other.cfg.Transport
}

// handled returns each type with a handler, with the names of the handlers.
func handled(e *Endpoint) (all []string) {
	for _, t := range e.types.all {
		for i := range e.types.calls[t.at] {
			all = append(all, t.name+" "+e.types.calls[t.at][i].name)
		}
	}
	slices.Sort(all)
	return all
}

// refuse ends an endpoint that has not run.
func refuse(e *Endpoint, err error) {
	if e.started.Swap(true) {
		return
	}
	e.err = err
	close(e.ended)
}

// warnOfHosts warns of instances of one endpoint that have one host id and different names.
func warnOfHosts(ctx context.Context, endpoints []*Endpoint) {
	names := map[[2]string]string{}
	for _, e := range endpoints {
		key := [2]string{e.cfg.Name, e.host.HostID}
		if first, ok := names[key]; ok && first != e.host.DisplayName {
			e.cfg.Logger.WarnContext(ctx, "two instances of the endpoint have one Host.ID and two names: ServicePulse shows them"+
				" as stopping and starting all the time; give them one Host.Name, or two IDs",
				slog.String("endpoint", e.cfg.Name), slog.String("host_id", e.host.HostID),
				slog.Any("names", []string{first, e.host.DisplayName}))
		}
		names[key] = e.host.DisplayName
	}
}

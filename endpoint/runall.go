package endpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"

	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/internal/errtree"
)

// checkNames returns an error for endpoints that receive from one queue and have different
// handlers.
func checkNames(endpoints []*Endpoint) error {
	var errs []error
	for i, e := range endpoints {
		other := slices.IndexFunc(endpoints[:i], func(other *Endpoint) bool { return other != e && other.sharesQueue(e) })
		if other >= 0 && !slices.Equal(endpoints[other].handled(), e.handled()) {
			errs = append(errs, fmt.Errorf("endpoint %q: two endpoints of RunAll have that name on one transport, and other handlers: "+
				"each would receive messages for the other one: give each a name of its own, or one endpoint the handlers of both", e.cfg.Name))
		}
	}
	return errors.Join(errs...)
}

// sharesQueue reports whether two endpoints receive from one queue.
func (e *Endpoint) sharesQueue(other *Endpoint) bool {
	if e.cfg.SendOnly || other.cfg.SendOnly || e.cfg.Name != other.cfg.Name {
		return false
	}
	// A value that cannot be compared makes == panic.
	own, its := reflect.ValueOf(e.cfg.Transport), reflect.ValueOf(other.cfg.Transport)
	return own.Comparable() && its.Comparable() && e.cfg.Transport == other.cfg.Transport
}

// handled returns the types that have handlers, each with the names of the handlers.
func (e *Endpoint) handled() (all []string) {
	for _, t := range e.types.all {
		for i := range t.calls {
			all = append(all, t.name+" "+t.calls[i].name)
		}
	}
	slices.Sort(all)
	return all
}

// refuse ends an endpoint that has not run.
func (e *Endpoint) refuse(err error) {
	if e.started.Swap(true) {
		return
	}
	e.err = err
	close(e.ended)
}

// reportForeign logs, once, that a message was received that the endpoint does not handle: another
// program may receive from the queue.
func (e *Endpoint) reportForeign(ctx context.Context, queue string, cause error) {
	if e.foreign.Swap(true) {
		return
	}
	e.cfg.Logger.WarnContext(ctx, "a message was received that the endpoint does not handle: another program with the name of this "+
		"endpoint may receive from this queue, with other handlers; each endpoint needs a name of its own", slog.String("queue", queue), slog.String("error", errtree.Cut(cause.Error(), settle.MaxLogged)))
}

package endpoint

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/transport"
)

// subscribe subscribes the endpoint's queue to the events that have handlers.
func (l *live) subscribe(ctx context.Context) error {
	types := l.e.types.subscribed()
	if len(types) == 0 {
		return nil
	}
	s, ok := l.conn.(transport.Subscriber)
	if !ok {
		return fmt.Errorf("endpoint %q: subscribe to %q: the transport cannot publish", l.e.cfg.Name, types)
	}
	if d, ok := l.conn.(transport.DerivedSubscriber); ok && d.SubscribesDerived() {
		l.warnOfBases(ctx, types)
		types = l.e.types.withDerived(types)
	}
	if err := s.Subscribe(ctx, l.e.cfg.Name, types); err != nil {
		return fmt.Errorf("endpoint %q: subscribe: %w", l.e.cfg.Name, err)
	}
	return nil
}

// warnOfBases logs each type that is a base type by name, if no registered event derives from the
// type: events that are published under the derived type alone do not arrive.
func (l *live) warnOfBases(ctx context.Context, types []string) {
	for _, name := range types {
		if isInterface(name) && !l.e.types.hasDerived(name) {
			l.e.cfg.Logger.WarnContext(ctx, "no registered event has this base type: events that derive from it and are published "+
				"under their own type alone do not arrive: register each of them in Config.Messages with this base type",
				slog.String("base", name))
		}
	}
}

// isInterface reports whether a type is an interface by the naming convention of .NET, such as
// Shop.IOrderEvent.
func isInterface(typeName string) bool {
	short, ok := strings.CutPrefix(typeName[strings.LastIndexAny(typeName, ".+")+1:], "I")
	next, _ := utf8.DecodeRuneInString(short)
	return ok && unicode.IsUpper(next)
}

// subscribed returns the names of the events that have handlers and need a subscription.
func (r *registry) subscribed() (names []string) {
	for _, t := range r.all {
		if t.kind == kindEvent && !t.manual && len(t.calls) > 0 {
			names = append(names, t.name)
		}
	}
	return names
}

// hasDerived reports whether an event is registered that has the base type.
func (r *registry) hasDerived(base string) bool {
	return slices.ContainsFunc(r.all, func(t *messageType) bool { return t.kind == kindEvent && slices.Contains(t.bases, base) })
}

// withDerived returns names, and the names of the events that derive from these types, except events
// that are registered [Message.WithoutSubscription].
func (r *registry) withDerived(names []string) []string {
	all := slices.Clone(names)
	for _, t := range r.all {
		derives := slices.ContainsFunc(t.bases, func(base string) bool { return slices.Contains(names, base) })
		if t.kind == kindEvent && derives && !t.manual && !slices.Contains(all, t.name) {
			all = append(all, t.name)
		}
	}
	return all
}

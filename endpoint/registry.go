package endpoint

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/holdfast-go/holdfast/header"
)

// call is a handler with the type of the handler.
type call struct {
	Handler
	order   int    // the place in the Config
	kind    string // of the records; "" for a handler without records
	keyName string // of the function for the key
	as      *messageType
}

// registry is the catalog with the handlers of the messages. A registry does not change after New.
type registry struct {
	catalog

	calls [][]call        // of the handlers of each type, including handlers of interfaces
	kinds map[string]bool // of the handlers' records
}

func newRegistry(endpoint string, messages []Message, routes []Route, handlers []Handler) (*registry, error) {
	r := &registry{kinds: map[string]bool{}}
	r.byType, r.byName = map[reflect.Type]*messageType{}, map[string]*messageType{}
	var errs []error
	for _, m := range messages {
		errs = append(errs, r.add(m))
	}
	for _, route := range routes {
		errs = append(errs, r.route(route))
	}
	r.calls = make([][]call, len(r.all))
	for i, h := range handlers {
		errs = append(errs, r.handle(call{Handler: h, order: i, kind: h.kindIn(endpoint), keyName: "the key function of " + h.name}))
	}
	for i := range handlers {
		errs = append(errs, r.local(&handlers[i]))
	}
	return r, errors.Join(errs...)
}

func (r *registry) handle(c call) error {
	if c.invoke == nil {
		return errors.New("a zero Handler: use Handle")
	}
	if c.err != nil {
		return fmt.Errorf("handler %s: %w", c.name, c.err)
	}
	for _, m := range c.sends {
		if t := reflect.TypeOf(m); t == nil || r.byType[structType(t)] == nil {
			return fmt.Errorf("handler %s sends a %T: %w", c.name, m, errNotRegistered)
		}
	}
	if c.kind != "" {
		r.kinds[c.kind] = true
	}
	if c.goType.Kind() != reflect.Interface {
		t, ok := r.byType[c.goType]
		if !ok {
			return fmt.Errorf("handler %s of %v: %w", c.name, c.goType, errNotRegistered)
		}
		r.call(t, c)
		return nil
	}
	found := false
	for _, t := range r.all {
		if reflect.PointerTo(t.goType).Implements(c.goType) {
			r.call(t, c)
			found = true
		}
	}
	if !found {
		return fmt.Errorf("handler %s of %v: no message in Config.Messages implements it", c.name, c.goType)
	}
	return nil
}

// local returns an error for each message that the handler sends to the endpoint's own queue, if the
// endpoint has no handler for the message.
func (r *registry) local(h *Handler) error {
	var errs []error
	for _, m := range h.local {
		t, err := r.of(m)
		if err == nil && !r.handles(t) {
			err = errNoHandler
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("handler %s sends a %T to the endpoint's own queue: %w", h.name, m, err))
		}
	}
	return errors.Join(errs...)
}

// handles reports whether a type, or a base type, has a handler.
func (r *registry) handles(t *messageType) bool {
	_, calls := r.named(t.enclosed)
	return len(calls) > 0
}

// call has the handler of c called for messages of a type.
func (r *registry) call(t *messageType, c call) {
	c.as = t
	r.calls[t.at] = append(r.calls[t.at], c)
}

// stores reports whether a handler has records of a kind.
func (r *registry) stores(kind string) bool { return r.kinds[kind] }

// named returns the first registered type of an enclosed-types header, nil when there is none, and
// the calls of the message's handlers, including handlers of the types that follow, in the order of
// the Config.
func (r *registry) named(enclosed string) (first *messageType, calls []call) {
	for name := range header.TypeNames(enclosed) {
		t, ok := r.byName[name]
		switch {
		case !ok || t == first:
		case first == nil:
			first, calls = t, r.calls[t.at]
		default:
			// A handler of an interface is called once, with the first type that implements it.
			merged := slices.Clone(calls)
			for _, c := range r.calls[t.at] {
				if !slices.ContainsFunc(calls, func(have call) bool { return have.order == c.order }) {
					merged = append(merged, c)
				}
			}
			slices.SortFunc(merged, func(a, b call) int { return a.order - b.order })
			calls = merged
		}
	}
	return first, calls
}

// nameOf returns the name of the first registered type of an enclosed-types header; "" if no type is
// registered.
func (r *registry) nameOf(enclosed string) string {
	if t, _ := r.named(enclosed); t != nil {
		return t.name
	}
	return ""
}

// haveKeys reports whether a handler of the types has keys.
func (r *registry) haveKeys(enclosed string) bool {
	_, calls := r.named(enclosed)
	return slices.ContainsFunc(calls, func(c call) bool { return c.key != nil })
}

// subscribed returns the names of the events that have handlers and need a subscription.
func (r *registry) subscribed() (names []string) {
	for _, t := range r.all {
		if t.kind == kindEvent && !t.manual && len(r.calls[t.at]) > 0 {
			names = append(names, t.name)
		}
	}
	return names
}

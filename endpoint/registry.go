package endpoint

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/holdfast-go/holdfast/endpoint/internal/typelimit"
	"github.com/holdfast-go/holdfast/header"
)

// messageType is a registered message with the handlers.
type messageType struct {
	Message
	types    []string           // name and bases
	enclosed string             // the same, as a header
	calls    []call             // of its handlers, including handlers of interfaces
	limiter  *typelimit.Limiter // nil: no limit
}

// call is a handler with the type that it takes a message as.
type call struct {
	Handler
	order   int    // its place in the Config
	kind    string // of its records; "" where it has none
	keyName string // of the function for its key
	as      *messageType
}

// newValue returns a pointer to a new, zero message.
func (t *messageType) newValue() any { return reflect.New(t.goType).Interface() }

// registry finds registered messages. It does not change after New.
type registry struct {
	all    []*messageType // as listed in the Config
	byType map[reflect.Type]*messageType
	byName map[string]*messageType
	kinds  map[string]bool // of the handlers' records
}

func newRegistry(cfg Config) (*registry, error) {
	r := &registry{byType: map[reflect.Type]*messageType{}, byName: map[string]*messageType{}, kinds: map[string]bool{}}
	var errs []error
	for _, m := range cfg.Messages {
		errs = append(errs, r.add(m))
	}
	for _, route := range cfg.Routes {
		errs = append(errs, r.route(route))
	}
	for i, h := range cfg.Handlers {
		errs = append(errs, r.handle(call{Handler: h, order: i, kind: h.kindIn(cfg.Name), keyName: "the key function of " + h.name}))
	}
	for i := range cfg.Handlers {
		errs = append(errs, r.local(&cfg.Handlers[i]))
	}
	errs = append(errs, r.rules(cfg.Recoverability.Rules))
	return r, errors.Join(errs...)
}

func (r *registry) add(m Message) error {
	if m.goType == nil {
		return errors.New("a zero Message: use Command, Event or Response")
	}
	if m.err != nil {
		return m.err
	}
	if other, ok := r.byType[m.goType]; ok {
		return fmt.Errorf("message %v is registered twice, as %q and %q", m.goType, other.name, m.name)
	}
	if other, ok := r.byName[m.name]; ok {
		return fmt.Errorf("message name %q belongs to both %v and %v", m.name, other.goType, m.goType)
	}
	types := append([]string{m.name}, m.bases...)
	t := &messageType{Message: m, types: types, enclosed: header.JoinTypes(types...)}
	if m.atMost > 0 {
		t.limiter = typelimit.New(m.atMost)
	}
	r.all = append(r.all, t)
	r.byType[m.goType], r.byName[m.name] = t, t
	return nil
}

func (r *registry) route(route Route) error {
	t, ok := r.byType[route.goType]
	switch {
	case route.goType == nil:
		return errors.New("a zero Route: use RouteTo")
	case !ok:
		return fmt.Errorf("route of %v to %q: %w", route.goType, route.queue, errNotRegistered)
	case route.queue == "":
		return fmt.Errorf("route of %v: the queue is empty", route.goType)
	case !isText(route.queue):
		return fmt.Errorf("route of %v: the queue %q %s", route.goType, route.queue, notText)
	case t.kind == kindEvent:
		return fmt.Errorf("route of %v: events are published, not routed", route.goType)
	case t.queue != "" && t.queue != route.queue:
		return fmt.Errorf("route of %v: it has two, to %q and to %q: leave one out", route.goType, t.queue, route.queue)
	}
	t.queue = route.queue
	return nil
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
		t.add(c)
		return nil
	}
	found := false
	for _, t := range r.all {
		if reflect.PointerTo(t.goType).Implements(c.goType) {
			t.add(c)
			found = true
		}
	}
	if !found {
		return fmt.Errorf("handler %s of %v: no message in Config.Messages implements it", c.name, c.goType)
	}
	return nil
}

// local returns an error for each message that the handler sends to the endpoint's own queue and
// that has no handler there.
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

func (t *messageType) add(c call) {
	c.as = t
	t.calls = append(t.calls, c)
}

// of returns the type of a message of the user, a struct or a pointer to one.
func (r *registry) of(m any) (*messageType, error) {
	if m == nil {
		return nil, errors.New("the message is nil")
	}
	v := reflect.TypeOf(m)
	if v.Kind() == reflect.Pointer && reflect.ValueOf(m).IsNil() {
		return nil, fmt.Errorf("the message is a nil %v", v)
	}
	t, ok := r.byType[structType(v)]
	if !ok {
		return nil, fmt.Errorf("%v: %w", v, errNotRegistered)
	}
	return t, nil
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
			first, calls = t, t.calls
		default:
			// A handler of an interface is called once, with the first type that implements it.
			merged := slices.Clone(calls)
			for _, c := range t.calls {
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

// names returns the names of all types.
func (r *registry) names() []string {
	names := make([]string, len(r.all))
	for i, t := range r.all {
		names[i] = t.name
	}
	return names
}

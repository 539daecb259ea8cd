package endpoint

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/holdfast-go/holdfast/endpoint/internal/typelimit"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/jsonloss"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/serialization"
)

// messageType is a registered message.
type messageType struct {
	Message
	types    []string           // name and bases
	enclosed string             // the same, as a header
	at       int                // index in catalog.all
	limiter  *typelimit.Limiter // nil: no limit
}

// catalog finds registered messages. A catalog does not change after New.
type catalog struct {
	all    []*messageType // as listed in the Config
	byType map[reflect.Type]*messageType
	byName map[string]*messageType
}

func (c *catalog) add(m Message) error {
	if m.goType == nil {
		return errors.New("a zero Message: use Command, Event or Response")
	}
	if m.err != nil {
		return m.err
	}
	if other, ok := c.byType[m.goType]; ok {
		return fmt.Errorf("message %v is registered twice, as %q and %q", m.goType, other.name, m.name)
	}
	if other, ok := c.byName[m.name]; ok {
		return fmt.Errorf("message name %q belongs to both %v and %v", m.name, other.goType, m.goType)
	}
	types := append([]string{m.name}, m.bases...)
	t := &messageType{Message: m, types: types, enclosed: header.JoinTypes(types...), at: len(c.all)}
	if m.atMost > 0 {
		t.limiter = typelimit.New(m.atMost)
	}
	c.all = append(c.all, t)
	c.byType[m.goType], c.byName[m.name] = t, t
	return nil
}

func (c *catalog) route(route Route) error {
	t, ok := c.byType[route.goType]
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

// of returns the type of a message of the user, a struct or a pointer to one.
func (c *catalog) of(m any) (*messageType, error) {
	if m == nil {
		return nil, errors.New("the message is nil")
	}
	v := reflect.ValueOf(m)
	if v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, fmt.Errorf("the message is a nil %v", v.Type())
	}
	t, ok := c.byType[structType(v.Type())]
	if !ok {
		return nil, fmt.Errorf("%v: %w", v.Type(), errNotRegistered)
	}
	return t, nil
}

// rules returns an error for each rule with the name of an unknown type.
func (c *catalog) rules(rules []recoverability.Rule) error {
	var errs []error
	for i, rule := range rules {
		for _, name := range rule.Types {
			if name != "" && !slices.ContainsFunc(c.all, func(t *messageType) bool { return slices.Contains(t.types, name) }) {
				errs = append(errs, fmt.Errorf(
					"recoverability: rule %d: no message in Config.Messages is called %q or has that base", i+1, name))
			}
		}
	}
	return errors.Join(errs...)
}

// hasDerived reports whether an event with the base type is registered.
func (c *catalog) hasDerived(base string) bool {
	return slices.ContainsFunc(c.all, func(t *messageType) bool { return t.kind == kindEvent && slices.Contains(t.bases, base) })
}

// withDerived returns names, and the names of the events that derive from these types, except
// events that are registered [Message.WithoutSubscription].
func (c *catalog) withDerived(names []string) []string {
	all := slices.Clone(names)
	for _, t := range c.all {
		derives := slices.ContainsFunc(t.bases, func(base string) bool { return slices.Contains(names, base) })
		if t.kind == kindEvent && derives && !t.manual && !slices.Contains(all, t.name) {
			all = append(all, t.name)
		}
	}
	return all
}

// checkBodies returns an error for each message type whose values the serializer JSON does not
// write and read completely.
func (c *catalog) checkBodies(s serializers) error {
	if s.writer() != serialization.JSON {
		return nil
	}
	var errs []error
	for _, t := range c.all {
		if err := jsonloss.Check(t.goType); err != nil {
			errs = append(errs, fmt.Errorf("message %v is not sent completely: %w", t.goType, err))
		}
	}
	return errors.Join(errs...)
}

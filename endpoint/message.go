package endpoint

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/holdfast-go/holdfast/header"
)

// Message gives a Go struct its name on the wire. [Command], [Event] and
// [Response] make one.
type Message struct {
	goType reflect.Type
	kind   messageKind
	name   string
	bases  []string
	err    error
}

type messageKind int

const (
	kindCommand messageKind = iota
	kindEvent
	kindResponse
)

func (k messageKind) String() string { return [...]string{"command", "event", "response"}[k] }

// Command registers M, a struct, as a message that is sent to one endpoint to do
// something. Name is its full name on the wire, such as "Shop.ShipOrder"; bases
// are the names of its base types, nearest first.
func Command[M any](name string, bases ...string) Message {
	return newMessage[M](kindCommand, name, bases)
}

// Event registers M, a struct, as a message that is published to whom it may
// concern. Who subscribed to one of bases gets it too.
func Event[M any](name string, bases ...string) Message {
	return newMessage[M](kindEvent, name, bases)
}

// Response registers M, a struct, as a message that answers another by [Session.Reply].
func Response[M any](name string, bases ...string) Message {
	return newMessage[M](kindResponse, name, bases)
}

func newMessage[M any](kind messageKind, name string, bases []string) Message {
	m := Message{goType: structType(reflect.TypeFor[M]()), kind: kind, name: name, bases: bases}
	switch {
	case m.goType.Kind() != reflect.Struct:
		m.err = fmt.Errorf("message %v: a message is a struct", m.goType)
	default:
		for _, n := range append([]string{name}, bases...) {
			if n == "" || strings.ContainsAny(n, ";,\r\n\x00") {
				m.err = fmt.Errorf("message %v: name %q is empty or has a character that names must not have", m.goType, n)
			}
		}
	}
	return m
}

// structType is the struct behind t, which may be a pointer to it.
func structType(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}

// messageType is a registered message and who handles it.
type messageType struct {
	Message
	types    []string // name and bases
	enclosed string   // the same, as a header
	queue    string   // its route, if any
	handlers []Handler
}

// newValue is a pointer to a new, zero message.
func (t *messageType) newValue() any { return reflect.New(t.goType).Interface() }

// registry finds registered messages. It does not change after New.
type registry struct {
	all    []*messageType // as listed in the Config
	byType map[reflect.Type]*messageType
	byName map[string]*messageType
}

func newRegistry(cfg Config) (*registry, error) {
	r := &registry{byType: map[reflect.Type]*messageType{}, byName: map[string]*messageType{}}
	var errs []error
	for _, m := range cfg.Messages {
		errs = append(errs, r.add(m))
	}
	for _, route := range cfg.Routes {
		errs = append(errs, r.route(route))
	}
	for _, h := range cfg.Handlers {
		errs = append(errs, r.handle(h))
	}
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
	case t.kind == kindEvent:
		return fmt.Errorf("route of %v: events are published, not routed", route.goType)
	case t.queue != "":
		return fmt.Errorf("route of %v: it has two, to %q and to %q", route.goType, t.queue, route.queue)
	}
	t.queue = route.queue
	return nil
}

func (r *registry) handle(h Handler) error {
	if h.invoke == nil {
		return errors.New("a zero Handler: use Handle")
	}
	t, ok := r.byType[h.goType]
	if !ok {
		return fmt.Errorf("handler %s of %v: %w", h.name, h.goType, errNotRegistered)
	}
	t.handlers = append(t.handlers, h)
	return nil
}

// of finds the type of a message that the user sends, a struct or a pointer to one.
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

// named finds the first registered type of an enclosed-types header.
func (r *registry) named(enclosed string) *messageType {
	for name := range header.TypeNames(enclosed) {
		if t, ok := r.byName[name]; ok {
			return t
		}
	}
	return nil
}

package endpoint

import (
	"fmt"
	"reflect"
	"strings"
)

// Message gives a Go struct its name on the wire. [Command], [Event] and
// [Response] make one.
type Message struct {
	goType reflect.Type
	kind   messageKind
	name   string
	bases  []string
	queue  string // its route, if any
	atMost int    // handled at once; 0 is no limit
	manual bool   // its subscription is somebody else's business
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
// are the names of its base types, nearest first: who handles one of these handles M too,
// read into the base type's own struct.
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

// To sends messages of this type to the queue of that name, unless the option [To] says otherwise. An event has no queue:
// it goes to its subscribers.
func (m Message) To(queue string) Message {
	switch {
	case m.err != nil:
	case m.kind == kindEvent:
		m.err = fmt.Errorf("message %v: To(%q): it is an event, and events are published, not sent", m.goType, queue)
	case queue == "":
		m.err = fmt.Errorf("message %v: To: the queue is empty", m.goType)
	}
	m.queue = queue
	return m
}

// AtMost bounds how many messages of this type the process handles at once, beside
// Concurrency: for what uses something scarce. n is at least 1.
//
// Messages over the bound wait without a slot, so that others are handled meanwhile; their
// leases are kept, and [Config.HandlerTimeout] begins when they are let in. About four times
// Concurrency can wait like that; when more come in a row, others wait behind them. So give
// a type that makes up most of the traffic an endpoint of its own.
func (m Message) AtMost(n int) Message {
	if n < 1 && m.err == nil {
		m.err = fmt.Errorf("message %v: AtMost(%d): at least one has to be handled", m.goType, n)
	}
	m.atMost = n
	return m
}

// WithoutSubscription keeps the endpoint from subscribing to this event although it has handlers for
// it: who set up the broker did so, or it is sent here by other means.
func (m Message) WithoutSubscription() Message {
	if m.kind != kindEvent && m.err == nil {
		m.err = fmt.Errorf("message %v: WithoutSubscription: it is a %v, and only events are subscribed to", m.goType, m.kind)
	}
	m.manual = true
	return m
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

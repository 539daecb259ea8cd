package endpoint

import (
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/fault"
)

// Message is a Go struct with its name in headers. [Command], [Event] and [Response] make one.
type Message struct {
	goType  reflect.Type
	kind    messageKind
	name    string
	bases   []string
	queue   string        // its route, if any
	atMost  int           // handled at once; 0 is no limit
	timeout time.Duration // of an attempt; 0 is no limit
	manual  bool          // the endpoint does not subscribe to it
	err     error
}

type messageKind int

const (
	kindCommand messageKind = iota
	kindEvent
	kindResponse
)

func (k messageKind) String() string { return [...]string{"command", "event", "response"}[k] }

// Command registers M, a struct, as a message that is sent to one endpoint. Name is its full name
// in headers, such as "Shop.ShipOrder"; bases are the names of its base types, nearest first. A
// handler of a base type handles M too: the body is read into the struct of the base type. If
// [serialization.JSON] writes the messages of the endpoint, M must be a type that JSON stores
// completely, as described in docs/configuration.md.
func Command[M any](name string, bases ...string) Message {
	return newMessage[M](kindCommand, name, bases)
}

// Event registers M, a struct, as a message that is published to its subscribers and to those of
// its base types.
func Event[M any](name string, bases ...string) Message {
	return newMessage[M](kindEvent, name, bases)
}

// Response registers M, a struct, as a message that is sent with [Session.Reply].
func Response[M any](name string, bases ...string) Message {
	return newMessage[M](kindResponse, name, bases)
}

// To sends messages of this type to the queue of that name, unless the option [To] says otherwise.
// An event has no queue: it goes to its subscribers.
func (m Message) To(queue string) Message {
	switch {
	case m.err != nil:
	case m.kind == kindEvent:
		m.err = fmt.Errorf("message %v: To(%q): it is an event, and events are published, not sent", m.goType, queue)
	case queue == "":
		m.err = fmt.Errorf("message %v: To: the queue is empty", m.goType)
	case !isText(queue):
		m.err = fmt.Errorf("message %v: To: the queue %q %s", m.goType, queue, notText)
	}
	m.queue = queue
	return m
}

// AtMost bounds how many messages of this type the process handles at once, in addition to
// Concurrency, where its handlers use a scarce resource. n is at least 1.
//
// Messages over the bound wait without a slot, so that messages of other types are handled
// meanwhile. Their leases are renewed, and [Config.HandlerTimeout] begins with the handler. At most
// four times Concurrency wait so; with more in a row, other types wait behind them. A type with
// most of the traffic should have an endpoint of its own.
func (m Message) AtMost(n int) Message {
	if n < 1 && m.err == nil {
		m.err = fmt.Errorf("message %v: AtMost(%d): at least one has to be handled", m.goType, n)
	}
	m.atMost = n
	return m
}

// Timeout limits the time of an attempt at a message of this type: of all its handlers together, in
// the place of [Config.HandlerTimeout]. d is positive. If the message has a policy with a Timeout,
// that counts instead: see [recoverability.Rule].
//
// After d the context of the handlers is cancelled with cause [resilience.ErrAttemptTimeout]. An
// error that they return then is an ordinary failure, and nil is a success. A handler that ignores
// its context continues to run; the next one is not called then.
func (m Message) Timeout(d time.Duration) Message {
	if d <= 0 && m.err == nil {
		m.err = fmt.Errorf("message %v: Timeout(%v): it must be positive", m.goType, d)
	}
	m.timeout = d
	return m
}

// WithoutSubscription keeps the endpoint from subscribing to this event although it has handlers
// for it: the subscription is made when the broker is set up, or the event arrives without one.
func (m Message) WithoutSubscription() Message {
	if m.kind != kindEvent && m.err == nil {
		m.err = fmt.Errorf("message %v: WithoutSubscription: it is a %v, and only events are subscribed to", m.goType, m.kind)
	}
	m.manual = true
	return m
}

func newMessage[M any](kind messageKind, name string, bases []string) Message {
	m := Message{goType: structType(reflect.TypeFor[M]()), kind: kind, name: name, bases: bases}
	for _, n := range append([]string{name}, bases...) {
		if n == "" || strings.ContainsAny(n, ";\r\n\x00") {
			m.err = fmt.Errorf("message %v: name %q is empty or has a character that names must not have", m.goType, n)
		} else if err := header.CheckTypes(n); err != nil {
			m.err = fmt.Errorf("message %v: %w", m.goType, err)
		}
	}
	if m.goType.Kind() != reflect.Struct {
		m.err = fmt.Errorf("message %v: a message is a struct", m.goType)
	}
	return m
}

// Route is a queue for the commands of a type, beside [Message.To]. [RouteTo] makes one.
type Route struct {
	goType reflect.Type
	queue  string
}

// RouteTo sends every M, a registered command or response, to the queue of that name unless the
// option [To] says otherwise. It is for a queue that is not known where the message is registered,
// as with messages that several programs share. A type whose [Message.To] is another queue is an
// error of [New].
func RouteTo[M any](queue string) Route {
	return Route{goType: structType(reflect.TypeFor[M]()), queue: queue}
}

// isText reports whether each broker keeps a text in headers, such as the name or the address of a
// queue: it is valid UTF-8 without control characters.
func isText(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, unicode.IsControl)
}

// notText is the end of an error for a text that is not [isText].
const notText = "has a control character or invalid UTF-8, which not every broker keeps"

// queueName reports whether a queue of the endpoint may have a name.
func queueName(name string) bool { return isText(name) && !strings.Contains(name, "@") }

// takes reports whether a function for a struct or an interface is called for a struct t.
func takes(function, t reflect.Type) bool {
	return function == t ||
		function.Kind() == reflect.Interface && reflect.PointerTo(t).Implements(function)
}

// shortName returns the name of a function without the path of the package, for example
// "billing.(*Service).Charge".
func shortName(function string) string { return function[strings.LastIndexByte(function, '/')+1:] }

// structType returns the struct type of t, a struct or a pointer to one. An interface, and a
// pointer to an interface, are returned unchanged: no type implements the pointer.
func structType(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer && t.Elem().Kind() != reflect.Interface {
		return t.Elem()
	}
	return t
}

// frameOf returns the function of the user at pc. The method of a value has no place in the source,
// because the compiler makes the function.
func frameOf(pc uintptr) fault.Frame {
	f := runtime.FuncForPC(pc)
	file, line := f.FileLine(pc)
	return fault.Frame{Func: strings.TrimSuffix(f.Name(), "-fm"), File: file, Line: line}
}

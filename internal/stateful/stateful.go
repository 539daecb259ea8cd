// Package stateful is the part of the endpoint that packages of this module use for handlers with
// records, such as the steps of a saga.
//
// A handler with a [Declaration] finds its [Call] in its context. It reaches the records through
// the transaction of its session:
//
//	tx, err := session.Tx(ctx)
//	store, _ := transport.TxOf[transport.StateStore](tx)
package stateful

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/timer"
	"github.com/holdfast-go/holdfast/pipeline"
)

// Declaration is what a handler with records declares to its endpoint.
type Declaration struct {
	// Owner is the part of the program that the records belong to, such as a saga. It is
	// comparable.
	Owner any
	// Kind is the name of Owner: the kind of its records without the endpoint. Two owners in an
	// endpoint have two kinds.
	Kind string
	// Func is the user's function, which the name of the handler is taken from.
	Func any
	// Key returns the key of a message: messages with one key of one kind are handled one after the
	// other in a process. "" is no key. Key is called once in each attempt, for all handlers of the
	// message before the first is called. An error is the failure of the message.
	Key func(m Message) (string, error)
	// Err is a mistake that endpoint.New reports.
	Err error
}

// maxKind is the longest kind in bytes.
const maxKind = 200

// Validate returns the mistakes in d.
func (d *Declaration) Validate() error {
	switch {
	case d.Err != nil:
		return d.Err
	case d.Kind == "":
		return errors.New("the name is empty")
	case len(d.Kind) > maxKind:
		return fmt.Errorf("the name has %d bytes: it must have at most %d", len(d.Kind), maxKind)
	case !utf8.ValidString(d.Kind) || strings.ContainsFunc(d.Kind, func(c rune) bool { return c == '@' || unicode.IsControl(c) }):
		return fmt.Errorf("the name %q has a character that it must not have (@, a control character or invalid UTF-8)", d.Kind)
	case d.Owner == nil || !reflect.TypeOf(d.Owner).Comparable():
		return errors.New("it has no owner")
	case d.Key == nil:
		return errors.New("it has no function for the key")
	}
	return nil
}

// KindOf returns the kind of the records of one owner in an endpoint, by its Kind. No name of an
// endpoint has an @, so the kinds of two endpoints in a database differ.
func KindOf(endpoint, kind string) string { return kind + "@" + endpoint }

// Message is a decoded message before its handlers are called.
type Message struct {
	Endpoint string      // its name
	Kind     string      // from [KindOf]
	Headers  *header.Map // must not be changed
	Value    any         // the message as the handler takes it: a pointer to a struct
	// Known reports whether a handler of the endpoint has records of a kind.
	Known func(kind string) bool
}

// As returns the Value of a [Message], or the argument of a handler, as the M that the handler
// takes: a struct, a pointer to one, or an interface.
func As[M any](value any) M {
	if m, ok := value.(M); ok {
		return m
	}
	return *value.(*M) //nolint:errcheck // another type is the mistake of a behavior, and its panic a failure
}

// Call is one call of a handler with a [Declaration]. Its fields do not change. It is safe for
// concurrent use.
type Call struct {
	Endpoint string // its name
	Kind     string // from [KindOf]
	Key      string // from Declaration.Key
	// Remember is how long ended records are kept; 0 is not at all.
	Remember time.Duration
	// Known reports whether a handler of the endpoint has records of a kind.
	Known func(kind string) bool
	// Waited is how long the message has waited for its keys.
	Waited time.Duration
	// Receive is the stage value of the attempt.
	Receive *pipeline.Receive
	Log     *slog.Logger
	// CancelTimer cancels a timer with the commit of the message. Send sets one whose
	// Outgoing.Timer is its stored name.
	CancelTimer func(name timer.Name) error

	mu       sync.Mutex // guards the rest
	outgoing []header.Field
}

// SetOutgoing adds a header to each message that the session sends from now on until the handler
// returns, unless the message has that header already.
func (c *Call) SetOutgoing(name, value string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.outgoing = append(c.outgoing, header.Field{Name: name, Value: value})
}

// AddOutgoing adds the headers of SetOutgoing to h.
func (c *Call) AddOutgoing(h *header.Map) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.outgoing {
		h.SetDefault(f.Name, f.Value)
	}
}

type callKey struct{}

// In returns a context for the handler of c.
func (c *Call) In(ctx context.Context) context.Context { return context.WithValue(ctx, callKey{}, c) }

// CallOf returns the call whose handler has ctx; nil if there is none.
func CallOf(ctx context.Context) *Call {
	c, _ := ctx.Value(callKey{}).(*Call)
	return c
}

// Header is an option of a call that sends a message: it sets a header, also one that the option
// Header of package endpoint refuses.
type Header struct{ Name, Value string }

// ApplySend sets the header.
func (h Header) ApplySend(out *pipeline.Outgoing) { out.Headers.Set(h.Name, h.Value) }

// ApplyPublish sets the header.
func (h Header) ApplyPublish(out *pipeline.Outgoing) { h.ApplySend(out) }

// ApplyReply sets the header.
func (h Header) ApplyReply(out *pipeline.Outgoing) { h.ApplySend(out) }

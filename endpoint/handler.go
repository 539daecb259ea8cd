package endpoint

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/recoverability"
)

// Handler handles the messages of a type and of its derived types, or of all types that implement
// an interface. [Handle] makes one.
type Handler struct {
	goType reflect.Type
	name   string
	pc     uintptr // of the user's function
	invoke func(ctx context.Context, s *Session, m any) error
	err    error
	key    func(m stateful.Message) (string, error) // nil: messages have no key
	state  *stateful.Declaration                    // nil: the handler has no records
	sends  []any                                    // messages that are registered, or New fails
	local  []any                                    // messages that are registered and have a handler, or New fails
}

// Handle returns a handler that calls fn for every message M. M is one of
//   - a registered struct or a pointer to one. A message with M as a base type is handled too: its body is read into
//     an M;
//   - an interface: fn is called for every registered struct that implements it, itself or by its pointer, with a
//     pointer to the struct.
//
// The handlers of a message are called in the order of the Config, one after the other, each once;
// [Session.DoNotContinue] skips the rest. Many goroutines call fn at once. The endpoint subscribes
// to the events of its handlers.
//
// When all handlers of a message have returned nil, their messages are sent and the message is
// completed. When one returns an error or panics, nothing is sent and recoverability decides. ctx
// ends when the endpoint stops before fn has returned, or when the lease of the message is lost.
func Handle[M any](fn func(ctx context.Context, s *Session, m M) error) Handler {
	t := reflect.TypeFor[M]()
	h := Handler{goType: structType(t), name: "nil"}
	if fn == nil {
		return h
	}
	h.isFunc(fn)
	h.invoke = func(ctx context.Context, s *Session, m any) error { return fn(ctx, s, stateful.As[M](m)) }
	return h
}

// HandleInOrderBy is [Handle], and within this process only it handles messages with one key one
// after the other, in the order in which the process received them. Other processes with the same
// endpoint handle messages with that key at the same time: for an order among all of them, run one
// process.
//
// The keys of all handlers of the endpoint are one set: messages of two types with an equal key,
// such as the id of an order, wait for each other too. Prefix the keys of messages that need not. A
// message has the keys of all its handlers at once, from before the first is called until it is
// settled.
//
// A message that fails gives its key up: the next one is handled before its retry, immediate or
// delayed. So does a message that waits for [recoverability.Config].RateLimit. A conflict with
// another transaction and an outage of the outbox's database are no failures, and keep the order.
// The broker may deliver messages in another order than that in which they were sent.
//
// A message that waits has no slot, so that messages with other keys are handled meanwhile, and no
// transaction. Its lease is renewed, and [Config.HandlerTimeout] begins with the handler. At most
// four times Concurrency messages wait, for keys and for [Message.AtMost]; with more in a row,
// others wait behind them. When the endpoint stops, those that wait return to their queue.
//
// key is called once per attempt, before any handler. It must return at most 500 bytes of valid
// UTF-8, and not "": else the message is moved to the error queue without a retry. A panic of key
// is a failure of the message. A message whose key is not known after 10 s, because key or the
// decoding of the message hangs, is overtaken by the messages behind it.
func HandleInOrderBy[M any](key func(M) string, fn func(ctx context.Context, s *Session, m M) error) Handler {
	h := Handle(fn)
	if key == nil {
		h.err = errors.New("HandleInOrderBy: the function for the key is nil")
		return h
	}
	h.key = func(m stateful.Message) (string, error) {
		k := key(stateful.As[M](m.Value))
		return k, checkKey(k)
	}
	return h
}

// Sends returns the handler with messages of the types that it sends: [New] fails when one of them
// is not registered.
func (h Handler) Sends(messages ...any) Handler {
	h.sends = append(slices.Clip(h.sends), messages...)
	return h
}

// SendsLocal is [Handler.Sends] for messages that the handler sends to the endpoint's own queue:
// [New] also fails when the endpoint has no handler for one of them.
func (h Handler) SendsLocal(messages ...any) Handler {
	h.local = append(slices.Clip(h.local), messages...)
	return h
}

// Stateful returns the handler with a declaration of its records. It is for packages of this
// module, such as saga.
func (h Handler) Stateful(d stateful.Declaration) Handler {
	h.state, h.key = &d, d.Key
	if v := reflect.ValueOf(d.Func); v.Kind() == reflect.Func && !v.IsNil() {
		h.isFunc(d.Func)
	}
	return h
}

// isFunc records fn as the user's function.
func (h *Handler) isFunc(fn any) {
	h.pc = reflect.ValueOf(fn).Pointer()
	h.name = shortName(frameOf(h.pc).Func)
}

// checkKey returns why the key that a function of the user's has returned is none.
func checkKey(key string) error {
	switch {
	case key == "":
		return recoverability.Unrecoverable(errors.New("the key of the message is empty"))
	case len(key) > maxKey:
		return recoverability.Unrecoverable(fmt.Errorf("the key of the message has %d bytes: it must have at most %d", len(key), maxKey))
	case !utf8.ValidString(key):
		return recoverability.Unrecoverable(fmt.Errorf("the key of the message, %q, is no valid UTF-8", key))
	}
	return nil
}

// maxKey is the longest key of a message in bytes.
const maxKey = 500

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
		errs = append(errs, r.handle(endpoint, call{Handler: h, order: i, keyName: "the key function of " + h.name}))
	}
	for i := range handlers {
		errs = append(errs, r.local(&handlers[i]))
	}
	return r, errors.Join(errs...)
}

func (r *registry) handle(endpoint string, c call) error {
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
	if c.state != nil {
		c.kind = stateful.KindOf(endpoint, c.state.Kind)
		r.kinds[c.kind] = true
	}
	for _, t := range r.all {
		if takes(c.goType, t.goType) {
			c.as = t
			r.calls[t.at] = append(r.calls[t.at], c)
		}
	}
	switch {
	case c.as != nil:
		return nil
	case c.goType.Kind() == reflect.Interface:
		return fmt.Errorf("handler %s of %v: no message in Config.Messages implements it", c.name, c.goType)
	}
	return fmt.Errorf("handler %s of %v: %w", c.name, c.goType, errNotRegistered)
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

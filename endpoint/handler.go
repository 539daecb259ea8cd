package endpoint

import (
	"context"
	"reflect"
	"runtime"
	"strings"
)

// Handler handles the messages of a type, of its derived types, or of all types that implement an
// interface. [Handle] makes one.
type Handler struct {
	goType reflect.Type
	name   string
	invoke func(ctx context.Context, s *Session, m any) error
}

// Handle makes a handler of fn, which is called for every message M. M is one of
//   - a registered struct or a pointer to one. A message that names M as a base type is
//     handled too: its body is read into an M of its own;
//   - an interface: fn is called for every registered struct that implements it, itself
//     or by its pointer, and is given a pointer to the struct.
//
// For each message the handlers that fit are called in the order of the Config, one after the
// other, each once; [Session.DoNotContinue] leaves out the rest. fn runs on many goroutines
// at once. The endpoint subscribes to the events that its handlers want.
//
// When fn returns nil, and so do the message's other handlers, what they sent
// leaves and the message is done with. When it returns an error or panics, nothing is
// sent and recoverability decides. ctx ends when the endpoint has to stop before fn
// is done, or when the message is no longer its own.
func Handle[M any](fn func(ctx context.Context, s *Session, m M) error) Handler {
	t := reflect.TypeFor[M]()
	h := Handler{goType: handledType(t), name: functionName(fn)}
	if fn == nil {
		return h
	}
	if t.Kind() != reflect.Struct { // a pointer or an interface
		h.invoke = func(ctx context.Context, s *Session, m any) error { return fn(ctx, s, m.(M)) } //nolint:errcheck // another type is the mistake of a behavior, and its panic a failure
	} else {
		h.invoke = func(ctx context.Context, s *Session, m any) error { return fn(ctx, s, *m.(*M)) } //nolint:errcheck // as above
	}
	return h
}

// handledType is the struct or interface that a handler of t is for. A pointer to an interface
// stays what it is: nobody implements it.
func handledType(t reflect.Type) reflect.Type {
	if s := structType(t); s.Kind() != reflect.Interface {
		return s
	}
	return t
}

// functionName is the name of fn in its source, such as "billing.(*Service).Charge".
func functionName(fn any) string {
	v := reflect.ValueOf(fn)
	if v.IsNil() {
		return "nil"
	}
	name := strings.TrimSuffix(runtime.FuncForPC(v.Pointer()).Name(), "-fm")
	return name[strings.LastIndexByte(name, '/')+1:]
}

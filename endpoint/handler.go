package endpoint

import (
	"context"
	"reflect"
	"runtime"
	"strings"

	"github.com/holdfast-go/holdfast/internal/fault"
)

// Handler handles the messages of a type and of its derived types, or of all types that implement an interface.
// [Handle] makes one.
type Handler struct {
	goType reflect.Type
	name   string
	pc     uintptr // of the user's function
	invoke func(ctx context.Context, s *Session, m any) error
}

// Handle returns a handler that calls fn for every message M. M is one of
//   - a registered struct or a pointer to one. A message with M as a base type is handled too: its body is read into
//     an M;
//   - an interface: fn is called for every registered struct that implements it, itself or by its pointer, with a
//     pointer to the struct.
//
// The handlers of a message are called in the order of the Config, one after the other, each once;
// [Session.DoNotContinue] skips the rest. Many goroutines call fn at once. The endpoint subscribes to the events of its
// handlers.
//
// When all handlers of a message have returned nil, their messages are sent and the message is completed. When one
// returns an error or panics, nothing is sent and recoverability decides. ctx ends when the endpoint stops before fn
// has returned, or when the lease of the message is lost.
func Handle[M any](fn func(ctx context.Context, s *Session, m M) error) Handler {
	t := reflect.TypeFor[M]()
	h := Handler{goType: handledType(t), name: "nil"}
	if fn == nil {
		return h
	}
	h.pc = reflect.ValueOf(fn).Pointer()
	h.name = shortName(h.frame().Func)
	if t.Kind() != reflect.Struct { // a pointer or an interface
		h.invoke = func(ctx context.Context, s *Session, m any) error { return fn(ctx, s, m.(M)) } //nolint:errcheck // another type is the mistake of a behavior, and its panic a failure
	} else {
		h.invoke = func(ctx context.Context, s *Session, m any) error { return fn(ctx, s, *m.(*M)) } //nolint:errcheck // as above
	}
	return h
}

// handledType returns the struct or interface of a handler of t. A pointer to an interface is returned unchanged: no
// type implements it.
func handledType(t reflect.Type) reflect.Type {
	if s := structType(t); s.Kind() != reflect.Interface {
		return s
	}
	return t
}

// frame returns the user's function. The method of a value has no place in its source, because the compiler makes the
// function.
func (h *Handler) frame() fault.Frame {
	f := runtime.FuncForPC(h.pc)
	file, line := f.FileLine(h.pc)
	return fault.Frame{Func: strings.TrimSuffix(f.Name(), "-fm"), File: file, Line: line}
}

// shortName returns a function's name without the path of its package, such as "billing.(*Service).Charge".
func shortName(function string) string { return function[strings.LastIndexByte(function, '/')+1:] }

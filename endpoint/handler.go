package endpoint

import (
	"context"
	"reflect"
	"runtime"
	"runtime/debug"
	"strings"
)

// Handler handles the messages of one type. [Handle] makes one.
type Handler struct {
	goType reflect.Type
	name   string
	invoke func(ctx context.Context, s *Session, m any) error
}

// Handle makes a handler of fn, which is called for every message M: a registered
// struct, or a pointer to one. It runs on many goroutines at once.
//
// When fn returns nil, and so do the message's other handlers, what they sent
// leaves and the message is done with. When it returns an error or panics, nothing is
// sent and recoverability decides. ctx ends when the endpoint has to stop before fn
// is done, or when the message is no longer its own.
func Handle[M any](fn func(ctx context.Context, s *Session, m M) error) Handler {
	t := reflect.TypeFor[M]()
	h := Handler{goType: structType(t), name: functionName(fn)}
	if fn == nil {
		return h
	}
	if t.Kind() == reflect.Pointer {
		h.invoke = func(ctx context.Context, s *Session, m any) error { return fn(ctx, s, m.(M)) }
	} else {
		h.invoke = func(ctx context.Context, s *Session, m any) error { return fn(ctx, s, *m.(*M)) }
	}
	return h
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

// PanicError is the error of a handler or behavior that panicked.
type PanicError struct {
	Value any    // what it panicked with
	Stack []byte // of the goroutine, at the panic
}

func (e *PanicError) Error() string { return "panic: " + panicText(e.Value) }

// Unwrap gives the error that it panicked with, if it was one.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// StackTrace is Stack as text; fault headers carry it.
func (e *PanicError) StackTrace() string { return string(e.Stack) }

// catchPanic turns a panic of the function that defers it into its error.
func catchPanic(err *error) {
	if v := recover(); v != nil {
		*err = &PanicError{Value: v, Stack: debug.Stack()}
	}
}

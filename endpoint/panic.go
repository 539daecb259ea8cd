package endpoint

import (
	"context"
	"errors"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/internal/callback"
)

// PanicError is the error of a handler or behavior that panicked.
type PanicError struct {
	Value any    // what it panicked with
	Stack []byte // of the goroutine, at the panic
}

func (e *PanicError) Error() string { return "panic: " + panicText(e.Value) }

// Unwrap returns the error that it panicked with, if it was one.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// FaultClass is "panic".
func (e *PanicError) FaultClass() string { return "panic" }

// StackTrace returns Stack without the frames that all stacks have: of taking it, of this module and of
// starting the goroutine. Where no other is left it returns all after the panic. Fault headers carry it.
func (e *PanicError) StackTrace() string {
	lines := strings.SplitAfter(string(e.Stack), "\n")
	start := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, "panic(") }) + 2
	if start < 2 || start > len(lines) {
		return string(e.Stack)
	}
	head, text, user := lines[0], []byte(nil), -1 // the goroutine; the frames; the end of those above the framework
	ours := false
	for _, line := range lines[start:] {
		if !strings.HasPrefix(line, "\t") { // else the place of the line before
			ours = slices.ContainsFunc(framework, func(pkg string) bool { return strings.HasPrefix(line, pkg) })
		}
		if ours {
			user = len(text)
		} else {
			text = append(text, line...)
		}
	}
	if user >= 0 { // the frames above the first one of the framework started the goroutine
		text = text[:user]
	}
	if len(text) == 0 {
		return head + strings.Join(lines[start:], "")
	}
	return head + string(text)
}

var framework = []string{
	"github.com/holdfast-go/holdfast/endpoint.", "github.com/holdfast-go/holdfast/internal/pump.",
	"github.com/holdfast-go/holdfast/telemetry/otel.",
}

// apart calls a function of the user's in a goroutine of its own, so that one that ends its goroutine ends no more than
// that. A panic and such an end are its error.
func apart(f func() error) error {
	err := callback.Run(context.Background(), func() (err error) {
		defer catchPanic(&err)
		return f()
	})
	if errors.Is(err, callback.ErrGoexit) {
		return errGoexit
	}
	return err
}

// catchPanic turns a panic of the function that defers it into its error.
func catchPanic(err *error) {
	if v := recover(); v != nil {
		*err = &PanicError{Value: v, Stack: debug.Stack()}
	}
}

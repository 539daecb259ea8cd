package recoverability

import (
	"fmt"
	"slices"
	"strings"
)

// PanicError is the error of a handler or behavior that panicked.
type PanicError struct {
	Value any    // what it panicked with
	Stack []byte // of the goroutine, at the panic
}

func (e *PanicError) Error() string { return "panic: " + e.Text() }

// Text returns the text of Value, whose methods may panic.
func (e *PanicError) Text() (text string) {
	defer func() {
		if recover() != nil {
			text = fmt.Sprintf("%T", e.Value)
		}
	}()
	return fmt.Sprint(e.Value)
}

// Unwrap returns the error that it panicked with, if it was one.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// FaultClass is "panic".
func (e *PanicError) FaultClass() string { return "panic" }

// FaultType returns the name of the type in fault headers.
func (e *PanicError) FaultType() string { return "*endpoint.PanicError" }

// StackTrace returns Stack without the frames that all stacks have: of taking it, of this module
// and of starting the goroutine. Where no other is left it returns all after the panic. Fault
// headers carry it.
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
	"github.com/holdfast-go/holdfast/endpoint.", "github.com/holdfast-go/holdfast/endpoint/internal/",
	"github.com/holdfast-go/holdfast/internal/pump.",
	"github.com/holdfast-go/holdfast/telemetry/otel.",
}

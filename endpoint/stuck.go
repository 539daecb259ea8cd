package endpoint

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/overdue"
	"github.com/holdfast-go/holdfast/internal/pump"
)

const (
	// stuckGrace is the time that handlers have after StopTimeout, when their context has been
	// cancelled.
	stuckGrace = 5 * time.Second
	// closeGrace bounds the end of the connections when Run returns without its handlers.
	closeGrace = time.Second
	// maxNamed bounds the handlers that an error or a line of the log names.
	maxNamed = 5
)

// StuckError is the error of [Endpoint.Run] when handlers, or other functions of the program that
// Run waits for, had not returned 5 s after StopTimeout. Their goroutines run on, and what they
// send or commit fails with [transport.ErrClosed], so the process should exit. The broker delivers
// their messages again. errors.As finds a StuckError in the error of [RunAll], too.
type StuckError struct {
	Endpoint string
	Handlers []StuckHandler // the longest-running first
}

// StuckHandler is a handler, or another function of the program, that has not returned.
type StuckHandler struct {
	Handler   string // its name, or of a function text such as "Transport.Translate"; "" in a behavior before the first handler
	Queue     string // of the message; "" for a function without a message, such as one of Config.Background
	MessageID string // same
	Running   time.Duration
}

func (e *StuckError) Error() string {
	return fmt.Sprintf("endpoint %q: end the process: handlers have not returned within StopTimeout and %v, and their messages are delivered again: %s",
		e.Endpoint, stuckGrace, namesOf(e.Handlers))
}

// namesOf returns the first handlers as text.
func namesOf(handlers []StuckHandler) string {
	var parts []string
	for _, h := range handlers[:min(len(handlers), maxNamed)] {
		text := cmp.Or(h.Handler, "a behavior")
		if h.MessageID != "" {
			text += fmt.Sprintf(" (message %.100q)", h.MessageID)
		}
		parts = append(parts, text+fmt.Sprintf(" for %v", h.Running.Round(100*time.Millisecond)))
	}
	if more := len(handlers) - len(parts); more > 0 {
		parts = append(parts, fmt.Sprintf("%d more", more))
	}
	return strings.Join(parts, ", ")
}

func stuckHandlers(late []overdue.Late) []StuckHandler {
	var all []StuckHandler
	for _, l := range late {
		all = append(all, StuckHandler{Handler: l.Handler, Queue: l.Queue, MessageID: l.Message, Running: l.Running})
	}
	return all
}

// takeAll reports whether no further message starts while the calls do not return. Many calls have
// no slot any more, such as the calls of behaviors that dispatch or recover.
func takeAll(late []overdue.Late) bool {
	var slots []*pump.Slot
	for _, l := range late {
		if l.Slot != nil {
			slots = append(slots, l.Slot)
		}
	}
	return pump.AllTaken(slots)
}

package endpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/overdue"
	"github.com/holdfast-go/holdfast/internal/backoff"
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

// untilReturned waits for the result of a run. It returns a StuckError when handlers outlast the
// stop: then the connections are closed, so that the handlers can neither send nor commit any more.
func (e *Endpoint) untilReturned(ctx context.Context, ran <-chan error) error {
	select {
	case err := <-ran:
		return err
	case <-ctx.Done():
	}
	if e.cfg.StopTimeout < 0 {
		return <-ran
	}
	lasting := context.WithoutCancel(ctx)
	waiting, end := context.WithCancel(lasting)
	defer end()
	result := make(chan error, 1)
	go func() {
		result <- <-ran
		end()
	}()
	if backoff.Sleep(waiting, e.cfg.StopTimeout+100*time.Millisecond) == nil {
		e.warnOfStuck(lasting)
	}
	for pause := stuckGrace - 100*time.Millisecond; backoff.Sleep(waiting, pause) == nil; pause = time.Second {
		if err := e.abandon(lasting); err != nil {
			return err
		}
	}
	return <-result
}

// watchCalls logs calls that are late until the result is called.
func (l *live) watchCalls(ctx context.Context) (end func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { l.Calls.Run(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

// warnOfStuck logs the handlers that run although their context has ended.
func (e *Endpoint) warnOfStuck(ctx context.Context) {
	live := e.live.Load()
	if live == nil {
		return
	}
	if stuck := stuckHandlers(live.Calls.Running(0)); len(stuck) > 0 {
		e.cfg.Logger.LogAttrs(ctx, slog.LevelError, "handlers run on after StopTimeout, although their context has ended: Run returns without them in 5 s",
			slog.String("endpoint", e.cfg.Name), slog.Int("count", len(stuck)), slog.String("handlers", namesOf(stuck)))
	}
}

// abandon closes the connections and returns a StuckError if handlers have run for the grace period
// and longer.
func (e *Endpoint) abandon(ctx context.Context) error {
	live := e.live.Load()
	if live == nil {
		return nil
	}
	stuck := stuckHandlers(live.Calls.Running(stuckGrace))
	if len(stuck) == 0 {
		return nil
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		if err := errors.Join(live.conn.Close(), live.Outbox.Close()); err != nil {
			e.cfg.Logger.WarnContext(ctx, "a connection could not be closed", slog.Any("error", err))
		}
	}()
	select {
	case <-closed:
	case <-time.After(closeGrace):
	}
	return &StuckError{Endpoint: e.cfg.Name, Handlers: stuck}
}

// addFunctions adds the functions that do not return to h.
func (l *live) addFunctions(h *Health) {
	if late := l.Calls.LateFunctions(); len(late) > 0 {
		h.Warnings = append(h.Warnings, "functions do not return: "+namesOf(stuckHandlers(late)))
	}
}

// addStuck adds the calls of the source's queue to h if they take all slots.
func (l *live) addStuck(h *Health, queue string, slots int) {
	late := l.Calls.Late(queue)
	if len(late) < max(1, slots) || !takeAll(late) {
		return
	}
	text := fmt.Sprintf("all %d slots of %q are taken by calls that do not return: %s", slots, queue, namesOf(stuckHandlers(late)))
	if slices.ContainsFunc(late, func(c overdue.Late) bool { return c.Limit == 0 }) {
		h.Warnings = append(h.Warnings, text)
		return
	}
	if !slices.Contains(h.Reasons, text) { // of the quarantine, which has the name of its endpoint
		h.bad("%s", text)
	}
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

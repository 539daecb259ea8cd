package process

import (
	"context"
	"log/slog"

	"github.com/holdfast-go/holdfast/endpoint/internal/panics"
)

// Loop processes the messages of an endpoint.
type Loop struct{ roads }

// New returns a loop for messages of s.
func New(s *Shared) *Loop {
	l := new(Loop)
	l.compose(s)
	return l
}

// ProcessExclusively processes a message from the quarantine, while no further message is processed.
// If the message could be neither settled nor moved, stuck is called.
func (l *Loop) ProcessExclusively(ctx context.Context, m *Message, stuck func()) {
	defer func() { // also when a handler calls runtime.Goexit
		if m.exclusive != nil && m.exclusive.Stuck {
			stuck()
		}
	}()
	l.quarantine.Process(ctx, m)
}

// Forward processes a message from a queue of the driver's own: the operations that the driver
// derives from the message are sent. If Forward fails, the message is requeued after a pause.
func (l *Loop) Forward(ctx context.Context, m *Message, derive Derive) {
	queue := m.Queue
	if out := ask(ctx, l.satellite.arrival, m); out != nil {
		m.end(ctx, out)
		return
	}
	if err := forward(ctx, m, derive); err != nil {
		m.LogError(ctx, slog.LevelError,
			"a message of the transport's own queue could not be processed: it stays there and is tried again",
			err, slog.String("queue", queue))
		m.end(ctx, m.keep(ctx, err))
	}
}

// Process makes attempts at the message, as far as the guards permit, until the message is settled,
// or left to the broker to deliver again.
func (r *road) Process(ctx context.Context, m *Message) {
	defer func() {
		for _, end := range r.ends {
			end(m)
		}
	}()
	if out := ask(ctx, r.arrival, m); out != nil {
		m.end(ctx, out)
		return
	}
	r.repeat(ctx, m)
}

// ask asks the guards in turn, and returns the first outcome; nil if the message goes on.
func ask(ctx context.Context, guards []guard, m *Message) outcome {
	for _, g := range guards {
		if out := g(ctx, m); out != nil {
			return out
		}
	}
	return nil
}

// repeat makes attempts until the message needs no further attempt.
func (r *road) repeat(ctx context.Context, m *Message) {
	for again := true; again; {
		if out := ask(ctx, r.admission, m); out != nil {
			m.end(ctx, out)
			return
		}
		again = r.step(ctx, m.begin())
	}
}

// step makes an attempt, acts on the outcome, and reports whether another attempt follows. A handler
// that calls runtime.Goexit leaves nothing of this goroutine but the deferred calls: then processing
// continues in a deferred call.
func (r *road) step(ctx context.Context, a *Attempt) bool {
	returned := false
	defer func() {
		if !returned && r.act(ctx, a, a.fail(ctx, panics.ErrGoexit)) {
			r.repeat(ctx, a.Message)
		}
	}()
	out, err := a.handle(ctx, r.attempt)
	if err != nil {
		out = a.fail(ctx, err)
	}
	a.leaveLimit()
	returned = true
	return r.act(ctx, a, out)
}

// act acts on the outcome of the attempt, and reports whether another attempt follows.
func (r *road) act(ctx context.Context, a *Attempt, out outcome) (next bool) {
	if f, ok := out.(failed); ok {
		a.RecoveredBy = a.newRecovery()
		out = a.recovered(ctx, a.RecoveredBy.Run(ctx, a.Of, f.err))
	}
	if w, ok := out.(again); ok {
		if out = a.pause(ctx, w.after); out == nil {
			return true
		}
	}
	a.end(ctx, out)
	return false
}

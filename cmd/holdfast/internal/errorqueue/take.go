package errorqueue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/transport"
)

// Plan has the options of taking messages out of an error queue.
type Plan struct {
	To     string  // for Retry: another queue than the one they failed in
	Rate   float64 // messages a second at most; 0 is unlimited
	DryRun bool    // change nothing
	// Report is called with each message and its error: nil when it was, or would be, taken. May be nil.
	Report func(Entry, error)
}

// Outcome is the result of taking messages.
type Outcome struct {
	Queue    string    `json:"queue"`
	Matched  int       `json:"matched"`
	Done     int       `json:"done"`
	Refused  int       `json:"refused"`
	DryRun   bool      `json:"dry_run"`
	Missing  []string  `json:"missing,omitempty"` // ids that no message has
	Failures []Failure `json:"failures,omitempty"`
}

// Failure is a message that stayed in the queue. An [Outcome] has the first hundred.
type Failure struct {
	ID    string `json:"id"`
	Error string `json:"error"`
}

const maxFailures = 100

// takeTimeout bounds one take, which an interrupt does not cancel.
const takeTimeout = 30 * time.Second

var (
	errNoOrigin    = errors.New("its headers do not say which queue it failed in: name one with --to")
	errUndecodable = errors.New("it cannot be decoded, so it cannot be sent unchanged: export it, correct it, and send it again")
)

// Retry returns the selected messages to the queue that they failed in, without the headers of their failure. Each is
// moved as a unit where the transport has one; a message that cannot be moved stays. When ctx ends, the current one is
// finished.
func (q *Queue) Retry(ctx context.Context, p Plan) (Outcome, error) {
	t := taking{queue: q, plan: p, start: time.Now(), ops: func(m *transport.Message, e *Entry) ([]transport.Operation, error) {
		to := p.To
		if to == "" {
			to = e.Queue
		}
		switch {
		case m.Undecodable != nil:
			return nil, fmt.Errorf("%w (%w)", errUndecodable, m.Undecodable)
		case to == "":
			return nil, errNoOrigin
		}
		back := &transport.Message{ID: m.ID, Headers: fault.ReturnHeaders(m.Headers), Body: m.Body, Native: m.Native}
		return []transport.Operation{{Message: back, Queue: to}}, nil
	}}
	return t.run(ctx)
}

// Discard deletes the selected messages.
func (q *Queue) Discard(ctx context.Context, p Plan) (Outcome, error) {
	t := taking{queue: q, plan: p, start: time.Now(), ops: func(*transport.Message, *Entry) ([]transport.Operation, error) {
		return nil, nil
	}}
	return t.run(ctx)
}

// Purge deletes all messages: at once where the transport can, else, and in a dry run, as Discard does.
func (q *Queue) Purge(ctx context.Context, p Plan) (Outcome, error) {
	purger, ok := q.Conn.(transport.Purger)
	if !ok || p.DryRun {
		return q.Discard(ctx, p)
	}
	n, err := purger.Purge(ctx, q.Name)
	return Outcome{Queue: q.Name, Matched: int(n), Done: int(n)}, err
}

// taking is a running Retry or Discard.
type taking struct {
	queue   *Queue
	plan    Plan
	ops     func(*transport.Message, *Entry) ([]transport.Operation, error)
	start   time.Time
	outcome Outcome
	found   []string // of the ids of the filter
}

func (t *taking) run(ctx context.Context) (Outcome, error) {
	t.outcome = Outcome{Queue: t.queue.Name, DryRun: t.plan.DryRun}
	err := t.queue.walk(ctx, func(cur transport.Cursor, m *transport.Message, e Entry) error {
		return t.visit(ctx, cur, m, e)
	})
	if err == nil {
		t.outcome.Missing = t.missing()
	}
	return t.outcome, err
}

func (t *taking) visit(ctx context.Context, cur transport.Cursor, m *transport.Message, e Entry) error {
	if err := t.pace(ctx); err != nil {
		return err
	}
	t.outcome.Matched++
	if len(t.queue.Filter.IDs) > 0 {
		t.found = append(t.found, e.ID)
	}
	ops, err := t.ops(m, &e)
	if err == nil && !t.plan.DryRun {
		err = take(ctx, cur, m, ops)
		if err != nil && !concernsOne(err) {
			return fmt.Errorf("message %s: %w", e.ID, err)
		}
	}
	t.count(e, err)
	return nil
}

// pace waits until the next message may be taken.
func (t *taking) pace(ctx context.Context) error {
	if t.plan.Rate <= 0 || t.plan.DryRun {
		return nil
	}
	due := t.start.Add(time.Duration(float64(t.outcome.Matched) / t.plan.Rate * float64(time.Second)))
	return backoff.Sleep(ctx, time.Until(due))
}

func take(ctx context.Context, cur transport.Cursor, m *transport.Message, ops []transport.Operation) error {
	whole, cancel := context.WithTimeout(context.WithoutCancel(ctx), takeTimeout)
	defer cancel()
	err := cur.Take(whole, m, ops)
	var refused *transport.DispatchError
	if errors.As(err, &refused) && refused.Total == 1 {
		return refusedError{refused.Ops[0].Err}
	}
	return err
}

// refusedError is the reason why the one operation of a message was refused.
type refusedError struct{ error }

func (e refusedError) Unwrap() error { return e.error }

// concernsOne reports whether err is about one message, so that the next may succeed.
func concernsOne(err error) bool {
	var refused refusedError
	return errors.Is(err, transport.ErrNotFound) || errors.As(err, &refused) && !errors.Is(err, transport.ErrOutcomeUnknown)
}

func (t *taking) count(e Entry, err error) {
	if err == nil {
		t.outcome.Done++
	} else {
		t.outcome.Refused++
	}
	if err != nil && len(t.outcome.Failures) < maxFailures {
		t.outcome.Failures = append(t.outcome.Failures, Failure{ID: e.ID, Error: err.Error()})
	}
	if t.plan.Report != nil {
		t.plan.Report(e, err)
	}
}

// missing returns the ids of the filter that were not found.
func (t *taking) missing() (ids []string) {
	for _, id := range t.queue.Filter.IDs {
		if !slices.Contains(t.found, id) && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

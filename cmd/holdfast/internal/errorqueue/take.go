package errorqueue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/transport"
)

// Plan has the options of taking messages out of an error queue.
type Plan struct {
	To     string  // for Retry: another queue than the one they failed in
	Rate   float64 // messages a second at most; 0 is unlimited
	DryRun bool    // change nothing
	Every  bool    // take each message with a selected id: several may have an id that no sender gave
	// Report is called with each message and its error: nil when it was, or would be, taken. May be
	// nil.
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

// Retry returns the selected messages to the queue that they failed in, without the headers of
// their failure. Each is moved as a unit where the transport has one; a message that cannot be
// moved stays. When ctx ends, the current one is finished.
func (q *Queue) Retry(ctx context.Context, p Plan) (Outcome, error) {
	return q.take(ctx, p, func(m *transport.Message, e *Entry) (candidates, error) {
		to := q.shortName(cmp.Or(p.To, e.Queue))
		switch {
		case m.Undecodable != nil:
			const why = "it cannot be decoded, so it cannot be sent unchanged: export it, correct it, and send it again"
			return nil, fmt.Errorf("%s (%w)", why, m.Undecodable)
		case to == "":
			return nil, errors.New("its headers do not say which queue it failed in: name one with --to")
		}
		back := &transport.Message{
			ID: m.ID, NativeID: m.NativeID, Headers: fault.ReturnHeaders(m.Headers), Body: m.Body, Native: m.Native,
		}
		return func(yield func([]transport.Operation) bool) {
			for _, c := range copies.ForReturn(back) {
				if !yield([]transport.Operation{{Message: c, Queue: to}}) {
					return
				}
			}
		}, nil
	})
}

// Discard deletes the selected messages.
func (q *Queue) Discard(ctx context.Context, p Plan) (Outcome, error) {
	return q.take(ctx, p, func(*transport.Message, *Entry) (candidates, error) {
		return func(yield func([]transport.Operation) bool) { yield(nil) }, nil
	})
}

// Purge deletes all messages: at once where the transport can, else, and in a dry run, as Discard
// does.
func (q *Queue) Purge(ctx context.Context, p Plan) (Outcome, error) {
	purger, ok := q.Conn.(transport.Purger)
	if !ok || p.DryRun {
		all := *q
		all.Filter.Failed = false
		return all.Discard(ctx, p)
	}
	n, err := purger.Purge(ctx, q.Name)
	return Outcome{Queue: q.Name, Matched: int(n), Done: int(n)}, err
}

// candidates are the operations that may be sent when a message is taken, the best first.
type candidates = iter.Seq[[]transport.Operation]

// take takes the selected messages out of the queue and sends the operations of each.
func (q *Queue) take(
	ctx context.Context, p Plan, ops func(*transport.Message, *Entry) (candidates, error),
) (Outcome, error) {
	o, found, start := Outcome{Queue: q.Name, DryRun: p.DryRun}, map[string]bool{}, time.Now()
	if !p.Every && q.Limit == 0 {
		if err := q.single(ctx); err != nil {
			return o, err
		}
	}
	err := q.walk(ctx, func(m listed, e Entry) error {
		if p.Rate > 0 && !p.DryRun {
			due := start.Add(time.Duration(float64(o.Matched) / p.Rate * float64(time.Second)))
			if err := backoff.Sleep(ctx, time.Until(due)); err != nil {
				return err
			}
		}
		o.Matched++
		if len(q.Filter.IDs) > 0 {
			found[e.ID] = true
		}
		send, refused := ops(m.message, &e)
		if refused == nil && !p.DryRun {
			var err error
			if refused, err = m.take(ctx, send); err != nil {
				return fmt.Errorf("message %s: %w", e.ID, err)
			}
		}
		o.count(e, refused)
		if p.Report != nil {
			p.Report(e, refused)
		}
		return nil
	})
	if err != nil {
		return o, err
	}
	for _, id := range q.Filter.IDs {
		if !found[id] {
			o.Missing = append(o.Missing, id)
			found[id] = true // an id that is given twice is missing once
		}
	}
	return o, nil
}

// single fails if several messages have a selected id that a driver made of the content of the
// messages.
func (q *Queue) single(ctx context.Context) error {
	if !slices.ContainsFunc(q.Filter.IDs, transport.IsContentID) {
		return nil
	}
	times := map[string]int{}
	err := q.Each(ctx, func(_ *transport.Message, e Entry) error {
		if transport.IsContentID(e.ID) {
			times[e.ID]++
		}
		return nil
	})
	for _, id := range q.Filter.IDs {
		if times[id] > 1 {
			return fmt.Errorf("%d messages have the id %s, which is made of their content: take one of them with --first 1, or each with --all",
				times[id], id)
		}
	}
	return err
}

// take takes the message, and sends the first candidate that is not refused for its content. An
// error that concerns this message alone, so that the next may be taken, is returned as refused.
func (m *listed) take(ctx context.Context, send candidates) (refused, err error) {
	for ops := range send {
		if refused, err = m.takeWith(ctx, ops); !copies.OfMessage(refused) {
			break
		}
	}
	return refused, err
}

func (m *listed) takeWith(ctx context.Context, ops []transport.Operation) (refused, err error) {
	whole, cancel := context.WithTimeout(context.WithoutCancel(ctx), takeTimeout)
	defer cancel()
	err = m.in.Take(whole, m.stored, ops)
	one := errors.Is(err, transport.ErrNotFound)
	if failed, ok := errors.AsType[*transport.DispatchError](err); ok && failed.Total == 1 {
		err = failed.Ops[0].Err
		one = one || !errors.Is(err, transport.ErrOutcomeUnknown)
	}
	if one {
		return err, nil
	}
	return nil, err
}

func (o *Outcome) count(e Entry, refused error) {
	if refused == nil {
		o.Done++
		return
	}
	if o.Refused++; o.Refused <= maxFailures {
		o.Failures = append(o.Failures, Failure{ID: e.ID, Error: refused.Error()})
	}
}

package endpoint

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/destination"
	"github.com/holdfast-go/holdfast/transport"
)

const (
	// queuesRefuse is the time after which the outbox sends a message again that its queue and the
	// error queue have refused.
	queuesRefuse = time.Minute
	// uncalled is the longest pause of a row that waits for a destination and cannot be called
	// back.
	uncalled = 5 * time.Second
)

// postponement is a row that returns to the outbox for later.
type postponement struct {
	to    string // the destination that it waits for
	after time.Duration
	fixed bool // it is not called back
	rest  []transport.Operation
}

// postpone returns the rows to the outbox, for later, with messages that wait for a destination and
// not for the broker: the relay sends others meanwhile. A relay that sends in order waits for a
// destination.
func (b *relayBatch) postpone(ctx context.Context) {
	later, soon := map[*relayRow]*postponement{}, map[*relayRow]bool{}
	for i, own := range b.owners {
		if own.waits == forBroker { // it is tried again before the row is postponed
			soon[own.row] = true
		}
		if off := b.postponementOf(&b.ops[i], own); off != nil {
			if before := later[own.row]; before == nil || off.after < before.after {
				later[own.row] = off
			}
		}
	}
	maps.DeleteFunc(later, func(row *relayRow, _ *postponement) bool { return soon[row] })
	if len(later) == 0 {
		return
	}
	ops, owners := b.ops, b.owners
	b.ops, b.owners = nil, nil
	for i, own := range owners {
		if off := later[own.row]; off != nil {
			off.rest = append(off.rest, withRefused(ops[i], own.refused))
		} else {
			b.ops, b.owners = append(b.ops, ops[i]), append(b.owners, own)
		}
	}
	b.mu.Lock()
	b.rows = slices.DeleteFunc(b.rows, func(row *relayRow) bool { return later[row] != nil })
	b.mu.Unlock()
	var all sync.WaitGroup
	for row, off := range later {
		all.Go(func() {
			if err := b.relay.defers(row, off); err != nil && !errors.Is(err, transport.ErrLeaseLost) {
				b.relay.live.e.cfg.Logger.WarnContext(ctx, "a message of the outbox could not be postponed: it is sent when its lease ends",
					slog.Any("error", err))
			}
		})
	}
	all.Wait()
}

// postponementOf returns how the row of an operation waits; nil if it stays in the batch.
func (b *relayBatch) postponementOf(op *transport.Operation, own owner) *postponement {
	book := b.relay.book()
	switch own.waits {
	case forErrorQueue:
		queue := b.relay.live.recoverability.ErrorQueue
		if book.Unwell(queue) {
			return &postponement{to: queue, after: book.Pause(queue)}
		}
		return &postponement{to: queue, after: queuesRefuse, fixed: true}
	case forDestination:
		if cap(b.relay.held) > 1 {
			to := destinationOf(op)
			return &postponement{to: to, after: book.Pause(to)}
		}
	case forBroker:
	}
	return nil
}

var errNotReplaced = errors.New("the outbox cannot replace a stored message")

// defers returns a row to the outbox for later.
func (r *relay) defers(row *relayRow, off *postponement) error {
	waits := destination.Row{Stored: row.stored, Audit: r.isAudit(off.rest)}
	d, ok := row.delivery.(transport.Deferrer)
	_, calls := r.outbox.conn.(transport.Hastener)
	var err error
	if ok && calls && len(off.rest) == row.total && !row.outdated {
		waits.Handle, err = d.Defer(r.live.settler.Context(), off.after)
	} else {
		if !off.fixed {
			off.after = min(off.after, uncalled)
		}
		err = r.storeAgain(row, off.rest, off.after)
	}
	if err != nil {
		return err
	}
	if off.fixed {
		waits.Handle = ""
	}
	waits.Due = time.Now().Add(off.after)
	r.book().Postpone(off.to, waits)
	return nil
}

// isAudit reports whether operations are copies for the audit queue alone.
func (r *relay) isAudit(ops []transport.Operation) bool {
	audit := r.live.names.Of(r.live.e.cfg.AuditQueue)
	return audit != "" && !slices.ContainsFunc(ops, func(op transport.Operation) bool { return r.live.names.Of(op.Queue) != audit })
}

// storeAgain replaces a row by one with the operations that are left, which is received after a
// while: those that were sent are not sent again.
func (r *relay) storeAgain(row *relayRow, rest []transport.Operation, after time.Duration) error {
	if row.timer != "" { // it can be replaced and cancelled until it is sent
		rest[0].Name, rest[0].After = row.timer, after
	}
	stored, err := r.outbox.stored(rest)
	if err != nil {
		return err
	}
	for i := range stored {
		stored[i].After = after
	}
	completer, ok := row.delivery.(transport.Completer)
	if !ok {
		return errNotReplaced
	}
	return completer.CompleteWith(r.live.settler.Context(), stored)
}

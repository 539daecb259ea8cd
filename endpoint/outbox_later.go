package endpoint

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

const (
	// queueBusy and queuesRefuse are the times after which the outbox sends a message again whose queue takes none at the
	// moment, and one that its queue and the error queue have refused.
	queueBusy    = 5 * time.Second
	queuesRefuse = time.Minute
)

// postpone returns the rows to the outbox, for later, with messages that wait for a queue and not for the broker: the relay
// sends others meanwhile. A relay that sends in order waits for a queue.
func (b *relayBatch) postpone(ctx context.Context) {
	after := map[*relayRow]time.Duration{}
	for _, own := range b.owners {
		switch own.waits {
		case forErrorQueue:
			after[own.row] = queuesRefuse
		case forQueue:
			if cap(b.relay.held) > 1 && after[own.row] == 0 {
				after[own.row] = queueBusy
			}
		case forBroker:
		}
	}
	if len(after) == 0 {
		return
	}
	ops, owners, later := b.ops, b.owners, map[*relayRow][]transport.Operation{}
	b.ops, b.owners = nil, nil
	for i, own := range owners {
		if after[own.row] > 0 {
			later[own.row] = append(later[own.row], ops[i])
		} else {
			b.ops, b.owners = append(b.ops, ops[i]), append(b.owners, own)
		}
	}
	b.mu.Lock()
	b.rows = slices.DeleteFunc(b.rows, func(row *relayRow) bool { return after[row] > 0 })
	b.mu.Unlock()
	for row, rest := range later {
		if err := b.relay.storeAgain(row, rest, after[row]); err != nil && !errors.Is(err, transport.ErrLeaseLost) {
			b.relay.live.e.cfg.Logger.WarnContext(ctx, "a message of the outbox could not be postponed: it is sent when its lease ends",
				slog.Any("error", err))
		}
	}
}

var errNotReplaced = errors.New("the outbox cannot replace a stored message")

// storeAgain replaces a row by one with the operations that are left, which is received after a while: those that were
// sent are not sent again.
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
	return completer.CompleteWith(r.live.settling.context(), stored)
}

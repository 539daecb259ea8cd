package endpoint

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

const (
	settleTimeout = 10 * time.Second
	settleTries   = 3

	requeueFailed = "a message could not be requeued: the broker delivers it again when its lease ends"
	releaseFailed = "a message could not be released: the broker delivers it again when its lease ends"
)

// settlement settles a delivery, once. All calls that settle go through it.
//
//	received ──▶ completedFirst     transaction mode None
//	    │              │
//	    └──────┬───────┘
//	           ├──▶ settled         completed, moved, retried, postponed or released
//	           ├──▶ leaseLost       another consumer has the message, or will
//	           └──▶ abandoned       the broker did not answer: it delivers the message again
//
// A call that fails leaves the state as it is, so that another may follow.
type settlement struct {
	in    *incoming
	state settlementState
	busy  *transport.BusyError // why the last call of complete failed, if a queue takes no messages
}

type settlementState int8

const (
	stateReceived settlementState = iota
	stateCompletedFirst
	stateSettled
	stateLeaseLost
	stateAbandoned
)

// over reports whether nothing more can be done about the message.
func (s *settlement) over() bool { return s.state >= stateSettled }

// completedFirst reports whether the message was completed before it was handled, so that it cannot
// return to its queue.
func (s *settlement) completedFirst() bool { return s.state == stateCompletedFirst }

func (s *settlement) lostLease() bool { return s.state == stateLeaseLost }

// completeFirst completes the message before it is handled. One that cannot be completed is not
// handled.
func (s *settlement) completeFirst(ctx context.Context) bool {
	s.in.slot.StopRenewing() // the lease ends here, and that is no loss
	if err := s.in.delivery.Complete(s.context()); err != nil {
		s.state = stateAbandoned
		s.in.logError(ctx, slog.LevelWarn, "a message could not be completed first: it is not handled now", err)
		return false
	}
	s.state = stateCompletedFirst
	return true
}

// complete sends ops and completes the message: in tx where there is one, as one unit where the
// transport can, else one after the other. A lost lease is no error.
func (s *settlement) complete(ctx context.Context, tx transport.Tx, ops []transport.Operation) error {
	if s.over() {
		return errSettled
	}
	return s.noted(s.completeWith(ctx, tx, ops))
}

// sendAhead sends operations before those of complete, where they are no unit with them.
func (s *settlement) sendAhead(ops []transport.Operation) error {
	if s.over() {
		return errSettled
	}
	return s.noted(s.send(ops))
}

// noted records why the message could not be completed, and returns err.
func (s *settlement) noted(err error) error {
	if s.busy = nil; err != nil {
		s.in.live.acks.forget()
		errors.As(err, &s.busy)
	}
	return err
}

func (s *settlement) completeWith(ctx context.Context, tx transport.Tx, ops []transport.Operation) error {
	if tx != nil {
		return s.end(ctx, tx.Complete(s.context(), ops))
	}
	if s.completedFirst() {
		return s.end(ctx, s.send(ops))
	}
	completer, ok := s.in.delivery.(transport.Completer)
	if ok && len(ops) > 0 {
		return s.settle(ctx, func(ctx context.Context) error { return completer.CompleteWith(ctx, ops) })
	}
	if err := s.send(ops); err != nil {
		return err
	}
	// The operations are sent: that the message cannot be completed is not its failure.
	s.try(ctx, s.in.delivery.Complete, "a message was handled but could not be completed: the broker delivers it again")
	return nil
}

// unit reports whether completing the message and sending are one. A transaction of the outbox is
// one of another database than the message's.
func (s *settlement) unit(tx transport.Tx) bool {
	if tx != nil {
		return s.in.live.outbox == nil
	}
	_, ok := s.in.delivery.(transport.Completer)
	return ok && !s.completedFirst()
}

func (s *settlement) send(ops []transport.Operation) error {
	if len(ops) == 0 {
		return nil
	}
	_, err := s.in.live.conn.Dispatch(s.context(), ops)
	return err
}

// retry returns the message to its queue. The broker counts that.
func (s *settlement) retry(ctx context.Context) { s.try(ctx, s.in.delivery.Retry, requeueFailed) }

// release returns the message to its queue untouched.
func (s *settlement) release(ctx context.Context) { s.try(ctx, s.in.delivery.Release, releaseFailed) }

// busyQueue returns the queue that took no messages when the message was to be completed, if the
// transport can postpone the message until it does; "" otherwise.
func (s *settlement) busyQueue() string {
	if _, ok := s.in.delivery.(transport.Postponer); !ok || s.busy == nil || s.completedFirst() {
		return ""
	}
	return s.busy.Queue
}

// postpone returns the message to its queue until the other queue takes messages again. That uses
// up no attempt.
func (s *settlement) postpone(ctx context.Context, busyQueue string) {
	p := s.in.delivery.(transport.Postponer) //nolint:errcheck // busyQueue has seen that it is one
	postpone := func(ctx context.Context) error { return p.Postpone(ctx, busyQueue) }
	if s.try(ctx, postpone, requeueFailed) {
		s.in.log().DebugContext(ctx, "a message waits until another queue takes messages, without an attempt used up",
			slog.String("message", s.in.logID()), slog.String("queue", busyQueue))
	}
}

// try settles the message, and leaves it to the broker when that fails.
func (s *settlement) try(ctx context.Context, verb func(context.Context) error, warning string) bool {
	err := s.settle(ctx, verb)
	if err != nil {
		s.abandon(ctx, warning, err)
	}
	return err == nil
}

// abandon leaves the message to the broker, because of err.
func (s *settlement) abandon(ctx context.Context, warning string, err error) {
	s.state = stateAbandoned
	s.in.logError(ctx, slog.LevelWarn, warning, err)
}

// settle calls a settling verb, again if the broker could not be reached. A refused operation and a
// lost lease are final, and the latter is no error. The verb has a context of its own: settling
// continues when ctx has ended.
func (s *settlement) settle(ctx context.Context, verb func(context.Context) error) error {
	own := s.context()
	err := verb(own)
	if err == nil {
		s.state = stateSettled
		return nil
	}
	pause := backoff.Backoff{Min: 100 * time.Millisecond, Max: time.Second}
	for try := 1; try < settleTries && repeatable(err) && pause.Wait(own) == nil; try++ {
		err = verb(own)
	}
	return s.end(ctx, err)
}

func repeatable(err error) bool {
	_, refused := errors.AsType[*transport.DispatchError](err)
	return err != nil && !refused && !errors.Is(err, transport.ErrLeaseLost) && !errors.Is(err, transport.ErrAlreadyHandled)
}

// end moves to the state that err means for the message, and returns the error of one that is not
// settled.
func (s *settlement) end(ctx context.Context, err error) error {
	switch {
	case err == nil:
		s.state = stateSettled
	case errors.Is(err, transport.ErrLeaseLost):
		s.markLost(ctx, err)
	default:
		return err
	}
	return nil
}

// markLost records that the lease is lost: a fact, not a failure, and nothing is left to settle.
// The loss is counted unless the failure of the message is.
func (s *settlement) markLost(ctx context.Context, err error) {
	if s.state = stateLeaseLost; s.in.recovery == nil {
		s.in.e.failures.LeaseLost(s.in.failureKey())
	}
	s.in.logError(ctx, slog.LevelWarn, "the lease of a message was lost: the broker delivers it again", err)
}

// lose ends an attempt whose lease was lost while the message was handled. Retry reports that to a
// driver that counts its deliveries; Release would not, because a message that was held for longer
// than its lease counts.
func (s *settlement) lose(ctx context.Context, cause error) {
	s.markLost(ctx, cause)
	_ = s.in.delivery.Retry(s.context()) // fails, because the lease is lost
}

// drop ends a held message whose delivery is lost. The failure of the message is counted already.
func (s *settlement) drop() {
	s.state = stateLeaseLost
	_ = s.in.delivery.Retry(s.context()) // fails, and lets the driver forget the delivery
}

// rollback ends the session and undoes its transaction, if it has one that is not over.
func (s *settlement) rollback(ctx context.Context, session *Session) {
	_, tx := session.end()
	if tx == nil {
		return
	}
	session.tx = nil
	s.undo(ctx, tx)
}

// undo rolls a transaction back. A database that cannot be reached does so itself.
func (s *settlement) undo(ctx context.Context, tx transport.Tx) {
	if err := tx.Rollback(s.context()); err != nil {
		s.in.logError(ctx, slog.LevelWarn, "a transaction could not be rolled back", err)
	}
}

func (s *settlement) context() context.Context { return s.in.live.settling.context() }

package endpoint

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast/endpoint/internal/outbox"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/timer"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport"
)

// A timer waits as a row with a name in the queue of the outbox, and the relay sends the timer when
// the timer is due. If handlers write to the transport's own database, in the mode
// SendsAtomicWithReceive, timers alone wait in the queue of the outbox, and the relay moves each to
// the timer's queue in one transaction.

var (
	errNoTimers = errors.New("timers need Config.Outbox, or the transaction mode SendsAtomicWithReceive on a SQL transport")
	errNoDelay  = errors.New("a timer is a message with a delay: use After or At")
	errRecovers = errors.New("a Recover stage and OnFinalFailure have no timers: they belong to the commit of a handled message")
)

// CancelTimer removes the timer with that name that waits; none is no error. It happens with the
// commit of the message that is being handled, in the order of the handler's calls: a timer that is
// set afterwards waits. A timer that was due before the commit may be on its way, and is handled.
func (s *Session) CancelTimer(_ context.Context, name string) error {
	return s.cancelTimer(timer.Name{Name: name})
}

func (s *Session) cancelTimer(name timer.Name) error {
	err := name.Validate()
	switch {
	case err != nil:
	case s.recovers:
		err = errRecovers
	case s.in.live.Timers == nil:
		err = s.in.live.whyNoTimers()
	default:
		err = s.unit.Keep(transport.Operation{Name: name.Text()})
	}
	if err != nil {
		return fmt.Errorf("cancel timer: %w", err)
	}
	return nil
}

// CancelTimer removes the timer with that name that waits, at once or with [In] a transaction; none
// is no error. A timer that is due may be on its way, and is handled. Other options have no effect.
func (e *Endpoint) CancelTimer(ctx context.Context, name string, opts ...TxOption) error {
	live := e.live.Load()
	if live == nil {
		return ErrNotRunning
	}
	var out pipeline.Outgoing
	for _, opt := range opts {
		opt.ApplySend(&out)
	}
	full := timer.Name{Name: name}
	err := full.Validate()
	switch {
	case err != nil:
	case live.Timers == nil:
		err = live.whyNoTimers()
	case out.Tx == noTx{}:
		err = errNilTx
	case out.Tx != nil && !live.Timers.Joins:
		err = errNoTx
	default:
		err = live.Timers.Dispatch(ctx, out.Tx, live.Timers.Cancels([]string{full.Text()}))
	}
	if err != nil {
		return fmt.Errorf("cancel timer: %w", err)
	}
	return nil
}

// openTimers opens the queue of the timers. An endpoint whose database has no queue for timers starts
// without timers, because the endpoint may not use timers.
func (l *live) openTimers(ctx context.Context) error {
	if l.Outbox != nil {
		l.Timers = l.Outbox
		return nil
	}
	o, ok := outbox.New(l.conn, l.e.cfg.Name+outboxSuffix, "")
	if l.e.cfg.Transactions != SendsAtomicWithReceive || !ok {
		return nil
	}
	o.Own = true
	o.SendTo(l.conn)
	if inspector, ok := l.conn.(transport.Inspector); ok {
		_, err := inspector.Inspect(ctx, o.Queue)
		if errors.Is(err, transport.ErrNoQueue) {
			l.noTimers = fmt.Errorf("timers wait in queue %q: %w: create it with Config.Install or Endpoint.Install", o.Queue, err)
			return nil
		}
		if err != nil {
			return fmt.Errorf("queue %q of timers: %w", o.Queue, err)
		}
	}
	l.Timers = o
	return nil
}

// whyNoTimers returns the reason why the endpoint has no timers.
func (l *live) whyNoTimers() error {
	if l.noTimers != nil {
		return l.noTimers
	}
	return errNoTimers
}

// checkTimer returns an error for a timer that cannot be set.
func checkTimer(out *outgoing, live *live) error {
	if out.Timer == "" {
		return nil
	}
	name, err := timer.Parse(out.Timer)
	if err == nil {
		err = name.Validate()
	}
	switch {
	case err != nil:
		return err
	case live.Timers == nil:
		return live.whyNoTimers()
	case out.Intent != header.IntentSend:
		return errors.New("only a message that is sent can be a timer")
	case !delayed(&out.Outgoing):
		return errNoDelay
	case out.Receipt != nil:
		return errViaReceipt
	case out.session != nil && out.session.recovers:
		return errRecovers
	}
	return nil
}

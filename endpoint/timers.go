package endpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/work"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/envelope"
	"github.com/holdfast-go/holdfast/internal/timer"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport"
)

// A timer waits as a row with a name in the queue of the outbox, and the relay sends it when it is
// due. Where handlers write to the transport's own database, in the mode SendsAtomicWithReceive,
// timers alone wait in that queue, and the relay moves each to its queue in one transaction.

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
	case s.in.live.timers == nil:
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
	case live.timers == nil:
		err = live.whyNoTimers()
	case out.Tx == noTx{}:
		err = errNilTx
	case out.Tx != nil && !live.timers.joins:
		err = errNoTx
	default:
		err = live.timers.dispatch(ctx, out.Tx, live.timers.cancels([]string{full.Text()}))
	}
	if err != nil {
		return fmt.Errorf("cancel timer: %w", err)
	}
	return nil
}

// openTimers opens the queue in which timers wait. An endpoint whose database has none starts
// without timers: it may not use them.
func (l *live) openTimers(ctx context.Context) error {
	if l.outbox != nil {
		l.timers = l.outbox
		return nil
	}
	o, ok := l.e.outboxOn(l.conn)
	if l.e.cfg.Transactions != SendsAtomicWithReceive || !ok {
		return nil
	}
	o.own, o.destinations.conn, o.destinations.limits = true, l.conn, l.limits
	if inspector, ok := l.conn.(transport.Inspector); ok {
		_, err := inspector.Inspect(ctx, o.queue)
		if errors.Is(err, transport.ErrNoQueue) {
			l.noTimers = fmt.Errorf("timers wait in queue %q: %w: create it with Config.Install or Endpoint.Install", o.queue, err)
			return nil
		}
		if err != nil {
			return fmt.Errorf("queue %q of timers: %w", o.queue, err)
		}
	}
	l.timers = o
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
	case live.timers == nil:
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

// timers returns ops without those of timers, and the operations that store or remove the timers. A
// stored timer has its name in a header, for tools.
func (o *outbox) timers(ops []transport.Operation, now time.Time) (rest, stored []transport.Operation, err error) {
	if !slices.ContainsFunc(ops, work.IsTimer) {
		return ops, nil, nil
	}
	for i := range ops {
		if ops[i].Name == "" {
			rest = append(rest, ops[i])
			continue
		}
		if ops[i].Message == nil {
			stored = append(stored, transport.Operation{Queue: o.queue, Name: ops[i].Name})
			continue
		}
		row, err := o.row(envelope.Encode(ops[i:i+1], now, 0)[0], now)
		if err != nil {
			return nil, nil, err
		}
		row.Name, row.At = ops[i].Name, ops[i].At
		if row.At.IsZero() {
			row.At = now.Add(ops[i].After)
		}
		row.Message.Headers = header.New(header.Field{Name: header.HoldfastTimer, Value: row.Name})
		stored = append(stored, row)
	}
	return rest, stored, nil
}

// apart returns ops with the operations that store the timers among them in place of these, and
// those that remove the cancelled ones. It is for ops that are not stored in the outbox.
func (o *outbox) apart(ctx context.Context, ops []transport.Operation, cancelled []string) ([]transport.Operation, error) {
	if !slices.ContainsFunc(ops, work.IsTimer) && len(cancelled) == 0 {
		return ops, nil
	}
	var rest, timers []transport.Operation
	for _, op := range ops {
		if work.IsTimer(op) {
			timers = append(timers, op)
		} else {
			rest = append(rest, op)
		}
	}
	if err := o.destinations.check(ctx, timers); err != nil {
		return nil, err
	}
	now := o.now()
	_, stored, err := o.timers(o.due(timers, now), now)
	return slices.Concat(rest, stored, o.cancels(cancelled)), err
}

// cancels returns the operations that remove timers by their stored names.
func (o *outbox) cancels(names []string) []transport.Operation {
	var ops []transport.Operation
	for _, name := range names {
		ops = append(ops, transport.Operation{Queue: o.queue, Name: name})
	}
	return ops
}

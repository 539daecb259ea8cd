package inmemory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// sender is the part of a conn that sends, also the messages of an outbox.
type sender struct{ *core }

func (s *sender) Dispatch(ctx context.Context, ops []transport.Operation) ([]transport.Receipt, error) {
	failed := s.check(ctx, ops)
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if s.closed {
		return nil, transport.FailAll(len(ops), transport.ErrClosed)
	}
	failed = s.b.missing(ops, failed)
	return s.put(ops, failed), failed.err(len(ops))
}

// failures are the operations of a dispatch that are refused.
type failures []transport.OpError

func (f failures) has(i int) bool {
	return slices.ContainsFunc(f, func(e transport.OpError) bool { return e.Index == i })
}

func (f failures) err(total int) error {
	if f == nil {
		return nil
	}
	slices.SortFunc(f, func(a, b transport.OpError) int { return a.Index - b.Index })
	return &transport.DispatchError{Total: total, Ops: f}
}

// check returns the operations that are refused for their content.
func (s *sender) check(ctx context.Context, ops []transport.Operation) (failed failures) {
	now := time.Now()
	for i := range ops {
		if err := s.checkOne(ctx, &ops[i], now); err != nil {
			failed = append(failed, transport.OpError{Index: i, Err: err})
		}
	}
	return failed
}

// objectOf returns the queue of an operation, or its first type.
func objectOf(op *transport.Operation) string {
	if op.Queue == "" && len(op.Types) > 0 {
		return op.Types[0]
	}
	return op.Queue
}

func (s *sender) checkOne(ctx context.Context, op *transport.Operation, now time.Time) error {
	object := objectOf(op)
	if err := s.t.refuse(ctx, "Dispatch", object); err != nil {
		return err
	}
	return s.refusal(op, now)
}

// Check implements [transport.Checker].
func (s *sender) Check(op *transport.Operation) error { return s.refusal(op, time.Now()) }

// refusal returns the error of an operation that is refused for its content.
func (s *sender) refusal(op *transport.Operation, now time.Time) error {
	object := objectOf(op)
	limits, m, delay := s.Limits(), op.Message, op.Delay(now)
	switch {
	case object == "":
		return errors.New("inmemory: operation without a queue or types")
	case op.Queue == "" && op.Name != "":
		return errors.New("inmemory: an operation with a name has no queue")
	case op.Message == nil && op.Name != "":
		return nil
	case op.Queue == "" && !s.t.offers(Subscriber):
		return fmt.Errorf("inmemory: publish %q: not offered", object)
	case limits.MaxBody > 0 && len(m.Body) > limits.MaxBody:
		return &transport.TooLargeError{What: "body", Size: len(m.Body), Max: limits.MaxBody}
	case limits.MaxHeaders > 0 && m.Headers.Size() > limits.MaxHeaders:
		return &transport.TooLargeError{What: "headers", Size: m.Headers.Size(), Max: limits.MaxHeaders}
	case delay > limits.MaxDelay:
		return fmt.Errorf("inmemory: a delay of %v is over the limit of %v", delay, limits.MaxDelay)
	case s.t.Refuse != nil:
		return s.t.Refuse(op)
	}
	return nil
}

// put carries out the operations that have not failed. Only a delayed send has a receipt: a delayed
// publish is a message per subscriber.
func (s *sender) put(ops []transport.Operation, failed failures) (receipts []transport.Receipt) {
	now := time.Now()
	for i := range ops {
		op := &ops[i]
		delay := op.Delay(now)
		switch {
		case failed.has(i):
		case op.Queue == "":
			for _, q := range s.b.destinations(op.Types) {
				q.put(newItem(op), now, delay)
			}
		case op.Name != "":
			q := s.b.queues[op.Queue]
			q.advance() // an expired one is gone
			if q.vacate(op.Name); op.Message != nil {
				it := newItem(op)
				it.name, q.names[op.Name] = op.Name, it
				q.put(it, now, delay)
			}
		default:
			it := newItem(op)
			s.b.queues[op.Queue].put(it, now, delay)
			if delay <= 0 {
				continue
			}
			if receipts == nil {
				receipts = make([]transport.Receipt, len(ops))
			}
			it.receipt = strconv.FormatUint(it.seq, 10)
			s.b.receipts[it.receipt], receipts[i].Cancel = it, it.receipt
		}
	}
	return receipts
}

// newItem copies the message of an operation, which its sender may reuse afterwards, without the
// properties of an earlier delivery.
func newItem(op *transport.Operation) *item {
	m := op.Message
	return &item{
		message: transport.Message{ID: m.ID, Headers: m.Headers.Clone(), Body: slices.Clone(m.Body)},
		ttl:     op.TTL,
	}
}

var _ transport.OutboxStore = (*conn)(nil)

func (s *sender) Store(ctx context.Context, e transport.OutboxEntry) error {
	return s.store(ctx, e, nil)
}

// BeginStore fails only if Transport.Fail returns an error, or with ErrClosed. Complete looks the
// key up: of two transactions with one key, the first to complete succeeds.
func (s *sender) BeginStore(ctx context.Context, e transport.OutboxEntry) (transport.Tx, error) {
	err := s.call(ctx, "BeginStore", e.Inbox, func() error { return nil })
	if err != nil {
		return nil, err
	}
	return &tx{core: s.core, commit: func(ctx context.Context, ops []transport.Operation, writes []func()) error {
		e.Ops = slices.Concat(e.Ops, ops)
		return s.store(ctx, e, writes)
	}}, nil
}

// store records, writes and sends, or does nothing.
func (s *sender) store(ctx context.Context, e transport.OutboxEntry, writes []func()) error {
	failed := s.check(ctx, e.Ops)
	return s.call(ctx, "Store", e.Inbox, func() error {
		if err := s.unhandled(e.Inbox, e.Key); err != nil {
			return err
		}
		if failed = s.b.missing(e.Ops, failed); failed != nil {
			return failed.err(len(e.Ops))
		}
		for _, write := range writes {
			write()
		}
		s.record(e.Inbox, e.Key)
		s.put(e.Ops, nil)
		return nil
	})
}

func (s *sender) Cancel(ctx context.Context, receipt string) error {
	return s.call(ctx, "Cancel", receipt, func() error {
		it := s.b.receipts[receipt]
		if it == nil {
			return fmt.Errorf("inmemory: cancel %q: %w", receipt, transport.ErrNotFound)
		}
		it.queue.discard(it)
		return nil
	})
}

// Hasten implements [transport.Hastener].
func (s *sender) Hasten(ctx context.Context, queue string, handles []string) error {
	return s.call(ctx, "Hasten", queue, func() error {
		q, err := s.b.find(queue)
		if err != nil {
			return err
		}
		q.hasten(handles, time.Now())
		return nil
	})
}

// unhandled fails with ErrAlreadyHandled if the inbox has the id of the key, and succeeds without a
// key. The broker is locked.
func (s *sender) unhandled(name string, key *transport.HandledKey) error {
	if key == nil {
		return nil
	}
	in, err := s.inbox(name)
	if err != nil {
		return err
	}
	if in.state(*key) != transport.NotHandled {
		return fmt.Errorf("inmemory: inbox %q: %w", name, transport.ErrAlreadyHandled)
	}
	return nil
}

// record adds a key, if there is one, to the inbox that unhandled has found. The broker is locked.
func (s *sender) record(name string, key *transport.HandledKey) {
	if key == nil {
		return
	}
	in, now := s.b.inboxes[name], time.Now()
	in.handled[key.ID] = handled{key.Sum, now}
	in.order = append(in.order, recorded{key.ID, now})
}

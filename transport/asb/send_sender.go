package asb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/internal/batch"
	"github.com/holdfast-go/holdfast/internal/goroutines"
	"github.com/holdfast-go/holdfast/transport"
)

const (
	// sendTimeout bounds a request to send.
	sendTimeout = 30 * time.Second
	// flushers is how many requests to one destination are in flight before further messages are
	// batched, and how many batches are in flight then.
	flushers = 2
	// groupsPerFlush is how many Dispatch calls share a request.
	groupsPerFlush = 100
	// denialPause is the least time between two requests to a destination that refuses all of them.
	denialPause = time.Second
)

// sender sends to a queue or topic. Concurrent calls of Dispatch share its requests.
type sender struct {
	conn    *conn
	entity  string
	groups  *batch.Batcher[[]*outgoing]
	direct  atomic.Int32 // requests by callers of send themselves
	denial  denial
	dropped sync.Once    // the warning about events that are dropped
	existed atomic.Bool  // the topic has taken an event, or Install has made or found it
	absent  atomic.Int64 // when the topic was found missing twice in a row, in Unix nanoseconds

	mu      sync.Mutex       // guards link and the links' fields; not held over a request
	link    *senderLink      // nil before the first use
	closing goroutines.Group // of former links
}

func (c *conn) sender(entity string) (*sender, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, transport.ErrClosed
	}
	s := c.senders[entity]
	if s == nil {
		s = &sender{conn: c, entity: entity}
		s.groups = batch.New(batch.Config[[]*outgoing]{Flush: s.flush, Flushers: flushers, MaxItems: groupsPerFlush})
		c.senders[entity] = s
	}
	return s, nil
}

// paced sends a group by do, and sends messages again that the service refused because the
// namespace is throttled, after a pause. The results are in the messages.
func (s *sender) paced(ctx context.Context, group []*outgoing, do func(context.Context, []*outgoing)) {
	for began := time.Now(); len(group) > 0; {
		own, err := s.turn(ctx, began, group[0].publish)
		if err != nil {
			fail(group, s.conn.orClosed(err))
			for _, m := range group {
				m.err = s.result(m)
			}
			return
		}
		do(ctx, group)
		if missing := s.unconfirmed(group); len(missing) > 0 {
			do(ctx, missing)
		}
		group = s.outcomes(own, group)
	}
}

// turn waits until the throttle permits a request, at most sendTimeout after began. It fails at
// once when the destination refuses all requests, except for a missing topic: a first subscription
// may have created it.
func (s *sender) turn(ctx context.Context, began time.Time, publish bool) (turn, error) {
	if err := s.denial.check(time.Now()); err != nil && (!publish || !errors.Is(err, transport.ErrNoQueue)) {
		return turn{}, err
	}
	if own, ok := s.conn.sending.throttle.try(); ok {
		return own, nil
	}
	ctx, end := joined(ctx, s.conn.ctx)
	defer end()
	ctx, cancel := context.WithDeadlineCause(ctx, began.Add(sendTimeout), errNoReply)
	defer cancel()
	own, err := s.conn.sending.throttle.wait(ctx)
	if err != nil {
		err = s.unsent(fmt.Errorf("%w: %w", errBusy, err))
	}
	return own, err
}

// outcomes ends a turn with the results of a group, and returns the messages that the service
// refused because the namespace is throttled.
func (s *sender) outcomes(own turn, group []*outgoing) (busy []*outgoing) {
	var failed, throttled error
	for _, m := range group {
		if errors.Is(m.err, errBusy) {
			busy, throttled = append(busy, m), m.err
			m.err = nil
			continue
		}
		if m.publish && m.err == nil {
			s.existed.Store(true)
		}
		failed = cmp.Or(failed, m.err)
		m.err = s.result(m)
	}
	own.end(cmp.Or(throttled, failed))
	return busy
}

// sendOnce sends a group in a request of its own while few are in flight, which saves a change of
// goroutines, else by the batcher.
func (s *sender) sendOnce(ctx context.Context, group []*outgoing) {
	defer s.direct.Add(-1)
	if s.direct.Add(1) > flushers {
		s.sendBatched(ctx, group)
		return
	}
	if err := s.request(ctx, group); err != nil {
		fail(group, s.conn.orClosed(err))
	}
}

// sendBatched sends a group in a request shared with other groups.
func (s *sender) sendBatched(ctx context.Context, group []*outgoing) {
	own := make([]*outgoing, len(group)) // copies, because a flush may outlast ctx
	for i, m := range group {
		copied := *m
		own[i] = &copied
	}
	switch err := s.groups.Do(ctx, own); {
	case errors.Is(err, batch.ErrAbandoned):
		fail(group, fmt.Errorf("asb: send to %q: %w: %w", s.entity, context.Cause(ctx), transport.ErrOutcomeUnknown))
	case errors.Is(err, batch.ErrClosed):
		fail(group, transport.ErrClosed)
	case err != nil:
		fail(group, err)
	default:
		for i, m := range own {
			group[i].err = m.err
		}
	}
}

// flush sends groups in as few requests as their size allows.
func (s *sender) flush(groups [][]*outgoing, errs []error) {
	if err := s.request(s.conn.ctx, groups...); err != nil {
		for i := range errs {
			errs[i] = err
		}
	}
}

// request sends groups. If it returns nil, the results are in the messages.
func (s *sender) request(ctx context.Context, groups ...[]*outgoing) error {
	return s.withLink(ctx, func(ctx context.Context, b *messageBatch) error {
		for _, group := range groups {
			for _, m := range group {
				b.add(ctx, m)
			}
		}
		b.flush(ctx)
		return nil
	})
}

// withLink calls do with an empty batch and a context that ends with the connection, with the conn,
// and after sendTimeout.
func (s *sender) withLink(ctx context.Context, do func(context.Context, *messageBatch) error) error {
	ctx, end := joined(ctx, s.conn.ctx)
	defer end()
	ctx, cancel := context.WithTimeoutCause(ctx, sendTimeout, errNoReply)
	defer cancel()
	l, err := s.acquire(ctx)
	if err != nil {
		s.denial.note(err)
		return err
	}
	on, over := joined(ctx, l.of.ctx)
	defer over()
	b := messageBatch{sender: s, over: l}
	defer func() {
		if b.denied != nil || !b.broken {
			s.denial.note(b.denied)
		}
		s.release(l, b.broken)
	}()
	return do(on, &b)
}

func (s *sender) close() {
	s.groups.Close()
	s.closing.Stop()
}

// unsent returns the error of messages that were certainly not sent. It is ErrUnreachable unless
// the service refused these messages themselves. A disabled destination may be enabled again, so it
// refuses no message.
func (s *sender) unsent(err error) error {
	own := plain(err)
	if errors.Is(own, errOff) { // of this destination alone
		return fmt.Errorf("asb: send to %q: %w: %w", s.entity, own, &transport.BusyError{Queue: s.entity, Reason: "it is disabled"})
	}
	if oneOf(own, errBusy, errFailed) || !refused(err) && !errors.Is(own, transport.ErrClosed) {
		own = fmt.Errorf("%w: %w", transport.ErrUnreachable, own)
	}
	return fmt.Errorf("asb: send to %q: %w", s.entity, own)
}

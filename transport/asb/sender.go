package asb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

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
	of      *senders
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

// paced sends a group by do, and sends messages again that the service refused because the
// namespace is throttled, after a pause. The results are in the messages.
func (s *sender) paced(
	ctx context.Context, group []*outgoing, do func(context.Context, []*outgoing),
) {
	for began := time.Now(); len(group) > 0; {
		own, err := s.turn(ctx, began, group[0].publish)
		if err != nil {
			fail(group, s.of.orClosed(err))
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
	if own, ok := s.of.sending.throttle.try(); ok {
		return own, nil
	}
	ctx, end := joined(ctx, s.of.ctx)
	defer end()
	ctx, cancel := context.WithDeadlineCause(ctx, began.Add(sendTimeout), errNoReply)
	defer cancel()
	own, err := s.of.sending.throttle.wait(ctx)
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
		fail(group, s.of.orClosed(err))
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
	if err := s.request(s.of.ctx, groups...); err != nil {
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
func (s *sender) withLink(
	ctx context.Context, do func(context.Context, *messageBatch) error,
) error {
	ctx, end := joined(ctx, s.of.ctx)
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

// linkIdle is the time without a request after which a link is not used again. The service detaches
// it after 10 minutes, and the client library does not say whether a message on a detached link was
// sent: https://learn.microsoft.com/azure/service-bus-messaging/service-bus-amqp-troubleshoot
const linkIdle = 5 * time.Minute

// senderLink is the library's sender on a client, shared by concurrent requests. Closing it ends
// all of them, so one that is not to be used again is closed after the last.
type senderLink struct {
	*azservicebus.Sender
	of *client

	users   int       // guarded by the sender's mu, as the fields below
	retired bool      // not for new requests
	last    time.Time // when the last request ended
}

// acquire returns a link that is attached, for one request. The caller releases it.
func (s *sender) acquire(ctx context.Context) (*senderLink, error) {
	cl, err := s.of.sending.client(ctx)
	if err != nil {
		return nil, s.unsent(err)
	}
	if l := s.share(nil, cl); l != nil {
		return l, nil
	}
	on, over := joined(ctx, cl.ctx)
	defer over()
	library, err := cl.NewSender(s.entity, nil)
	if err != nil {
		return nil, s.unsent(cl.cause(ctx, err))
	}
	own := &senderLink{Sender: library, of: cl}
	if _, err = library.NewMessageBatch(on, nil); err != nil { // the library attaches with the first request
		s.mu.Lock()
		defer s.mu.Unlock()
		s.retire(own)
		return nil, s.unsent(cl.cause(ctx, err))
	}
	return s.share(own, cl), nil
}

// share adds a user to the link on a client and returns it. If there is none, own becomes the link;
// with own nil, share returns nil.
func (s *sender) share(own *senderLink, cl *client) *senderLink {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.link; l != nil && l.users == 0 && time.Since(l.last) >= linkIdle {
		s.link = nil
		s.retire(l)
	}
	switch {
	case s.link != nil && s.link.of == cl:
		s.retire(own)
	case own == nil:
		return nil
	default:
		s.retire(s.link)
		s.link = own
	}
	s.link.users++
	return s.link
}

// release ends one use of a link. A broken link is not used again.
func (s *sender) release(l *senderLink, broken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.users--
	l.last = time.Now()
	if broken && s.link == l {
		s.link = nil
	}
	if broken || l.retired {
		s.retire(l)
	}
}

// retire closes a link in a goroutine, once it has no users. After close the client ends it. Called
// with mu held.
func (s *sender) retire(l *senderLink) {
	if l == nil {
		return
	}
	l.retired = true
	if l.users > 0 {
		return
	}
	s.closing.Go(func() {
		ctx, cancel := context.WithTimeout(s.of.ctx, closeTimeout)
		defer cancel()
		_ = l.Close(ctx) // an error leaves it to the client
	})
}

// denial records that a destination refuses all requests, because it does not exist, is disabled or
// full, or the key has no right to it. Further messages fail without a request, except for one each
// denialPause, until a request succeeds. The zero value permits all.
type denial struct {
	mu    sync.Mutex // guards the fields below
	err   error
	until time.Time
}

// check returns the refusal of an earlier request, or nil to permit a request.
func (d *denial) check(now time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err == nil || now.Before(d.until) {
		return d.err
	}
	d.until = now.Add(denialPause)
	return nil
}

// note records the outcome of a request. One that is no final answer changes nothing.
func (d *denial) note(err error) {
	if err != nil && !oneOf(plain(err), transport.ErrNoQueue, errRights, errOff, errFull) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
	if err != nil {
		d.until = time.Now().Add(denialPause)
	}
}

// An event published to a topic that never existed has no subscribers and is dropped, unless
// Transport.MissingTopic says otherwise; a topic that existed was deleted with its subscriptions,
// which is an error. The service also answers "not found" for short times, and for the $management
// of a topic alone, so a topic counts as missing only after two such answers in a row about the
// topic itself.

// unconfirmed returns the messages whose topic was not found, unless that was found out twice in a
// row lately.
func (s *sender) unconfirmed(group []*outgoing) (missing []*outgoing) {
	if time.Since(time.Unix(0, s.absent.Load())) < denialPause {
		return nil
	}
	for _, m := range group {
		if m.publish && errors.Is(m.err, transport.ErrNoQueue) {
			m.err = nil
			missing = append(missing, m)
		}
	}
	return missing
}

// result returns the error of a message after its last request: nil for an event that has no
// subscribers.
func (s *sender) result(m *outgoing) error {
	switch {
	case !m.publish || !errors.Is(m.err, transport.ErrNoQueue):
		return m.err
	case strings.Contains(strings.ToLower(m.err.Error()), "$management"):
		return s.unmanaged(m.err)
	}
	s.absent.Store(time.Now().UnixNano())
	if missing := s.of.ns.MissingTopic; missing == FailMissingTopic || missing == "" && s.existed.Load() {
		return fmt.Errorf("%w: the topic does not exist: run the installer of an endpoint that publishes or subscribes, or set "+
			"Transport.MissingTopic to %q if the event may have no subscribers", m.err, IgnoreMissingTopic)
	}
	s.dropped.Do(func() {
		s.of.log.Warn("events of a topic that does not exist are dropped, as there are no subscribers", "topic", s.entity, "err", m.err,
			"advice", "if these events should be received, create the topic: run the installer of an endpoint that subscribes, or holdfast endpoint subscribe")
	})
	return nil
}

// unmanaged returns the error of a request for which only the topic's $management was missing.
func (s *sender) unmanaged(err error) error {
	return fmt.Errorf("asb: publish to %q: %w: the broker does not find the $management of the topic; the topic itself may exist: %v",
		s.entity, transport.ErrUnreachable, err) //nolint:errorlint // it must not be taken for ErrNoQueue
}

// deliver sends messages. The results are in the messages.
func (s *sender) deliver(ctx context.Context, group []*outgoing) {
	slices.SortStableFunc(group, func(a, b *outgoing) int { return a.due.Compare(b.due) }) // zero first
	later := slices.IndexFunc(group, func(m *outgoing) bool { return !m.due.IsZero() })
	if later < 0 {
		s.paced(ctx, group, s.sendOnce)
		return
	}
	s.paced(ctx, group[:later], s.sendOnce)
	s.schedule(ctx, group[later:])
}

// schedule sends messages that are due later and have a receipt: the request returns the numbers
// that cancel them. Messages due at the same time share a request. Messages without a receipt are
// scheduled by a property and sent like others.
func (s *sender) schedule(ctx context.Context, group []*outgoing) {
	var requests sync.WaitGroup
	for len(group) > 0 {
		n := 1
		for n < len(group) && n < mostScheduled && group[n].due.Equal(group[0].due) {
			n++
		}
		together := group[:n]
		requests.Go(func() { s.paced(ctx, together, s.scheduleAt) })
		group = group[n:]
	}
	requests.Wait()
}

func (s *sender) scheduleAt(ctx context.Context, group []*outgoing) {
	err := s.withLink(ctx, func(ctx context.Context, b *messageBatch) error {
		for left := group; len(left) > 0; {
			n := b.room(left)
			b.scheduleSome(ctx, left[:n])
			left = left[n:]
		}
		return nil
	})
	if err != nil {
		fail(group, err)
	}
}

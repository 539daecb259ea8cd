package rabbitmq

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/goroutines"
	"github.com/holdfast-go/holdfast/transport"
)

// maxUnconfirmed is how many messages may be unconfirmed at once whose callers wait.
const maxUnconfirmed = 1000

// publisher is the connection for sending. It has one channel at a time.
type publisher struct {
	*brokerConn
	current slot[*sender]
	worn    []*sender // replaced ones, of which some may be closed; used by keepSending alone

	window     chan struct{} // has an element for each unconfirmed message, but for abandoned ones
	unanswered unanswered
	turn       chan struct{} // has an element while something is declared; a mutex that a context can end
	refusals   refusals

	blocked  atomic.Pointer[blocking] // nil while the broker reads from the connection
	finished chan *amqp.Error
	tasks    goroutines.Group
}

// blocking is a period in which the broker takes no messages.
type blocking struct {
	reason string
	over   chan struct{} // closed at its end
}

func (s *sending) dialPublisher(ctx context.Context) (*publisher, error) {
	b, err := s.dial(ctx, "sending")
	if err != nil {
		return nil, err
	}
	p := &publisher{
		brokerConn: b,
		window:     make(chan struct{}, maxUnconfirmed),
		turn:       make(chan struct{}, 1),
		finished:   make(chan *amqp.Error, 1),
		unanswered: unanswered{log: s.log},
	}
	if err := abortable(ctx, b.close, func() error { return p.open(s) }); err != nil {
		p.close()
		return nil, fmt.Errorf("rabbitmq: open a channel for sending: %w", plain(err))
	}
	return p, nil
}

func (p *publisher) open(by *sending) error {
	// It is read until it is closed, so that the client library never blocks.
	blocks := p.NotifyBlocked(make(chan amqp.Blocking, 1))
	p.tasks.Go(func() { p.watchBlocked(blocks) })

	s, err := p.openSender()
	if err != nil {
		return err
	}
	p.current.set(s, nil)
	p.tasks.Go(func() { p.keepSending(by, s) })
	return nil
}

func (p *publisher) watchBlocked(blocks <-chan amqp.Blocking) {
	for ok := true; ok; {
		var b amqp.Blocking // inactive when the connection has ended
		b, ok = <-blocks
		if was := p.blocked.Swap(nil); was != nil {
			close(was.over)
		}
		if b.Active {
			p.blocked.Store(&blocking{reason: b.Reason, over: make(chan struct{})})
			p.unanswered.blocked()
		}
	}
}

// Blocked implements [transport.Blocker]: it reports whether the broker has an alarm, being short
// of memory or disk.
func (s *sending) Blocked() bool {
	p, _, err := s.publishing.now()
	return err == nil && p.blocked.Load() != nil
}

// Warnings implements [transport.Warner]: it names the queues that the broker confirms no messages
// for.
func (s *sending) Warnings() []string {
	p, _, err := s.publishing.now()
	if err != nil || p.blocked.Load() != nil {
		return nil
	}
	return p.unanswered.warnings()
}

// Connected implements [transport.ConnectionReporter], for the connection for sending.
func (s *sending) Connected() bool {
	_, _, err := s.publishing.now()
	return err == nil
}

func (p *publisher) lost() <-chan *amqp.Error { return p.finished }

func (p *publisher) close() {
	p.brokerConn.close()
	p.tasks.Stop()
}

// ready waits until the broker accepts messages and the socket has room for one.
func (p *publisher) ready(ctx context.Context) error {
	if b := p.blocked.Load(); b != nil {
		select {
		case <-b.over:
		case <-ctx.Done():
			return fmt.Errorf("rabbitmq: the broker takes no messages at the moment (%s): %w", b.reason, context.Cause(ctx))
		}
	}
	if err := p.link.out.Wait(ctx); err != nil {
		return fmt.Errorf("rabbitmq: the broker does not read: %w", err)
	}
	return nil
}

// inTurn runs f, which declares something, while no other call does. After waiting, f may find it
// declared.
func (p *publisher) inTurn(ctx context.Context, f func() error) error {
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
		return f()
	case <-ctx.Done():
		return fmt.Errorf("rabbitmq: other calls wait for the broker to declare something: %w", context.Cause(ctx))
	}
}

// sent is a published message without the broker's confirm.
type sent struct {
	index   int // of the operation
	confirm *amqp.DeferredConfirmation
	sender  *sender
	id      string
	route   route
}

// route is the address of a message. A mandatory message has to arrive in a queue; a publish may
// reach none.
type route struct {
	exchange, key string
	mandatory     bool
}

// outcome waits for the broker's answer, returns it and frees the place in the window. It is called
// once.
func (p *publisher) outcome(m sent) error {
	err := p.await(m)
	<-p.window
	return err
}

// abandon has the broker's answer awaited by a goroutine, because the caller has stopped to wait.
// It returns false, and does nothing, if the connection is closed.
func (p *publisher) abandon(m sent) bool {
	free, replace := p.unanswered.add(m.route, m.sender)
	if replace {
		m.sender.wearOut()
	}
	m.sender.wear.abandon(m.confirm.DeliveryTag)
	m.sender.wear.use() // the batch uses the channel, too
	ok := p.tasks.Go(func() {
		_ = p.await(m)
		p.forget(m)
		if !free {
			<-p.window
		}
	})
	if !ok {
		p.forget(m)
	} else if free {
		<-p.window
	}
	return ok
}

// forget ends the counts of an abandoned publish.
func (p *publisher) forget(m sent) {
	p.unanswered.remove(m.route)
	m.sender.wear.abandoned.Add(-1)
	p.release(m.sender)
}

// await waits for the broker's answer and returns it. It is called once.
func (p *publisher) await(m sent) error {
	s := m.sender
	acked := m.confirm.Wait()
	isReturned := m.route.mandatory && s.returned.take(m.id, m.route.key)
	closed := !acked && s.ch.IsClosed()
	if acked { // a channel refuses the first message for a queue without a majority, after a while
		p.unanswered.answered(m.route)
	}
	switch {
	case isReturned:
		return fmt.Errorf("rabbitmq: send to %q: %w", m.route.key, transport.ErrNoQueue)
	case acked:
		return nil
	case closed:
		// The client library reports unconfirmed messages as refused.
		<-s.over
		return fmt.Errorf("rabbitmq: %w: %w", transport.ErrOutcomeUnknown, s.end)
	default:
		return errRefused
	}
}

var errRefused = fmt.Errorf("rabbitmq: the broker refused the message: %w", transport.ErrFull)

// returned collects the messages that the broker returned because no queue took them. The notice of
// a message arrives before its confirm, and can be taken once the confirm has arrived.
type returned struct {
	notices chan amqp.Return

	mu     sync.Mutex // guards counts, and holds while a notice is moved there
	counts map[returnKey]int
}

// returnKey identifies the message of a notice. Two copies of one message to the same queue are
// interchangeable.
type returnKey struct{ id, queue string }

// collect moves the notices to counts each time that the client library has one, until the channel
// ends: the library drops a notice for which notices has no room, and there may be more of them
// than places in the window. The library writes to notices before it writes to arrived.
func (r *returned) collect(arrived <-chan amqp.Return) {
	for range arrived {
		r.mu.Lock()
		r.count()
		r.mu.Unlock()
	}
}

// count moves the notices to counts. The caller has locked mu.
func (r *returned) count() {
	for len(r.notices) > 0 {
		n := <-r.notices
		if r.counts == nil {
			r.counts = make(map[returnKey]int)
		}
		r.counts[returnKey{n.MessageId, n.RoutingKey}]++
	}
}

// take reports whether the message was returned, and forgets it.
func (r *returned) take(id, queue string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count()
	key := returnKey{id, queue}
	if n := r.counts[key]; n <= 1 {
		delete(r.counts, key)
		return n == 1
	}
	r.counts[key]--
	return true
}

// learnMaxBody reads the largest body that the broker takes from its refusal of one, which ended
// the channel: larger ones are refused before they are sent.
func (s *sending) learnMaxBody(e *amqp.Error) {
	if e == nil {
		return
	}
	if m := tooLarge.FindStringSubmatch(e.Reason); m != nil {
		if size, err := strconv.Atoi(m[1]); err == nil && size > 0 {
			s.maxBody.Store(int64(min(size, s.limits.MaxBody)))
		}
	}
}

// tooLarge matches the broker's refusal of a body larger than its max_message_size.
var tooLarge = regexp.MustCompile(`^PRECONDITION_FAILED - message size \d+ .*max size (\d+)$`)

package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/transport"
)

// session is one channel that a receiver receives through, from its opening to its
// end. Delivery tags mean something on their own channel only, so a delivery keeps its
// session and can never settle one of another.
type session struct {
	receiver *receiver
	ch       *amqp.Channel
	lost     chan *amqp.Error
	lapsed   chan struct{} // a consumer ended that we did not cancel
	timer    *time.Timer   // when the next acknowledgement is due
	holds    *time.Ticker  // when to look for what is held for long, and for what is prefetched in vain

	prefetch *prefetch

	mu      sync.Mutex // guards what follows, and is held when the lock of prefetch is taken
	acks    acks
	waiting []*delivery // prefetched, in order
	held    bool        // deliveries wait for others to be settled
	closing bool        // to be closed when everything is settled
	ended   error       // why nothing can be settled any more
}

func openSession(conn *amqp.Connection, r *receiver) (*session, error) {
	ch, err := conn.Channel()
	if err != nil {
		return nil, fmt.Errorf("rabbitmq: receive from %q: %w", r.queue, plain(err))
	}
	s := &session{
		receiver: r,
		ch:       ch,
		lost:     ch.NotifyClose(make(chan *amqp.Error, 1)),
		lapsed:   make(chan struct{}, 1),
		timer:    time.NewTimer(time.Hour),
		holds:    time.NewTicker(min(r.conn.maxHold/20, calm/3)),
		prefetch: newPrefetch(r.conn.keep()),
	}
	s.acks.ch, s.acks.timer = ch, s.timer
	return s, nil
}

// serve works until the channel is lost, or the receiver closed and everything settled.
func (s *session) serve(ctx context.Context, r *receiver) error {
	defer s.timer.Stop()
	defer s.holds.Stop()
	err := s.work(ctx, r)
	if err == nil || errors.Is(err, transport.ErrClosed) {
		return transport.ErrClosed
	}
	return fmt.Errorf("rabbitmq: receive from %q: %w", r.queue, err)
}

func (s *session) work(ctx context.Context, r *receiver) error {
	for {
		window, last, closed := r.limit()
		later, err := s.fit(window, last, time.Now())
		if err != nil {
			return err
		}
		var again <-chan time.Time
		if later {
			again = time.After(min(narrowFor, r.conn.keep()))
		}
		if closed && s.retire() {
			return s.ch.Close()
		}
		select {
		case e := <-s.lost:
			return lossOf(e)
		case <-s.lapsed:
			return s.lapse()
		case <-s.timer.C:
			s.flushDue()
		case now := <-s.holds.C:
			s.watchHolds(ctx, now)
		case <-r.poke:
		case <-again:
		case <-ctx.Done():
			return transport.ErrClosed
		}
	}
}

var errChannelClosed = errors.New("the channel was closed")

func lossOf(e *amqp.Error) error {
	if e == nil {
		return errChannelClosed
	}
	return plain(e)
}

// lapse ends a session that the broker has stopped sending to.
func (s *session) lapse() error {
	if s.ch.IsClosed() {
		return lossOf(<-s.lost)
	}
	err := errors.New("the broker cancelled the consumer: the queue was deleted or has moved, or a message was held for too long")
	return errors.Join(err, s.ch.Close())
}

// end makes every later settle fail.
func (s *session) end() { s.endWith(transport.ErrLeaseLost) }

func (s *session) endWith(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended == nil {
		s.ended = err
		if errors.Is(err, transport.ErrLeaseLost) && !errors.Is(err, transport.ErrClosed) {
			s.remember()
		}
	}
	s.waiting = nil
	s.prefetch.end()
}

// remember takes note of what comes again now, though it may be done with.
func (s *session) remember() {
	for _, p := range s.acks.pending {
		s.receiver.lost(p.of, true)
	}
	for d := s.acks.oldest; d != nil; d = d.next {
		if d.handed {
			s.receiver.lost(d, d.completed)
		}
	}
}

// completedLate takes note of a delivery whose acknowledgement had no way any more.
func (s *session) completedLate(d *delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.settled && !d.late {
		return // or its acknowledgement is pending
	}
	d.completed = true
	if s.ended != nil || d.late {
		s.receiver.conn.processed.finish(s.receiver.queue, &d.message)
	}
}

// finish hands acknowledgements that wait for company to the socket, and ends.
func (s *session) finish() {
	s.mu.Lock()
	// What cannot be handed over any more comes again.
	_ = s.acks.flush(time.Now().Add(lateAck))
	s.mu.Unlock()
	s.endWith(fmt.Errorf("%w: %w", transport.ErrClosed, transport.ErrLeaseLost))
}

// retire releases what was prefetched, and reports whether everything is settled. It
// waits for the consumers to end first: they would be sent the same messages again.
func (s *session) retire() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.prefetch.idle() {
		return false
	}
	s.release(func(int, *delivery) bool { return true })
	return s.acks.open == 0 && len(s.acks.pending) == 0
}

// collect takes the deliveries of a consumer until it ends.
func (s *session) collect(c *consumer, in <-chan amqp.Delivery) {
	for d := range in {
		s.push(c, &d)
	}
	if s.prefetch.drain(c) {
		signal(s.receiver.poke)
	} else {
		signal(s.lapsed)
	}
}

func (s *session) push(c *consumer, in *amqp.Delivery) {
	now := time.Now()
	d := &delivery{
		since:   now,
		message: s.receiver.conn.read(in),
		attempt: attemptOf(in, s.receiver.conn.queueType),
		unnamed: isUnnamed(in),
		session: s,
		from:    c,
		tag:     in.DeliveryTag,
	}
	done := in.Redelivered && s.receiver.conn.processed.again(s.receiver.queue, &d.message)
	if done {
		s.receiver.conn.log.Info("a message came again whose acknowledgement was lost: it is acknowledged without being handled again",
			"queue", s.receiver.queue, "message", d.message.ID)
	}
	if s.admit(c, d, done || expired(&d.message, now)) {
		return
	}
	// One whose acknowledgement is lost comes again, and is over again.
	_ = d.settle(d.acknowledge)
}

// admit takes note of a delivery, and has it wait for a handler unless it is over.
func (s *session) admit(c *consumer, d *delivery, over bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acks.add(d)
	s.prefetch.arrive(c)
	if over {
		return false
	}
	s.waiting = append(s.waiting, d)
	if len(s.waiting) == 1 {
		signal(s.receiver.wake)
	}
	return true
}

// take gives up to limit of the waiting deliveries, and whether there are more. A window
// just made smaller binds at once, though the broker may still send ahead by the old one.
func (s *session) take(limit, window int) ([]transport.Delivery, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.acks.open - len(s.waiting)
	n := min(limit, len(s.waiting), window-out)
	now := time.Now()
	if s.prefetch.take(max(n, 0), len(s.waiting) < limit, s.acks.open+len(s.acks.pending), window, now) {
		signal(s.receiver.poke)
	}
	if n <= 0 {
		s.held = len(s.waiting) > 0
		return nil, false
	}
	ds := make([]transport.Delivery, n)
	for i, d := range s.waiting[:n] {
		d.handed, d.taken = true, now
		ds[i] = d
	}
	clear(s.waiting[:n])
	s.waiting = s.waiting[n:]
	return ds, len(s.waiting) > 0
}

func (s *session) flushDue() {
	s.mu.Lock()
	defer s.mu.Unlock()
	// A failure means that the channel is lost, of which serve hears by itself.
	_ = s.acks.due(time.Now())
}

// account notes that a delivery is settled, and wakes whom that may concern.
func (s *session) account(d *delivery) {
	d.settled = true
	s.acks.remove(d)
	var handled time.Duration
	if d.handed {
		handled = time.Since(d.taken)
	}
	replaced := s.prefetch.settle(d.from, handled, s.acks.open-len(s.waiting))
	if s.held {
		s.held = false
		signal(s.receiver.wake)
	}
	if replaced || s.closing && s.acks.open == 0 {
		signal(s.receiver.poke)
	}
}

func (s *session) lostError(err error) error {
	return fmt.Errorf("rabbitmq: settle a message of %q: %w", s.receiver.queue, err)
}

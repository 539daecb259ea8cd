package asb

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/holdfast-go/holdfast/transport"
)

const (
	// maxReceive is the most that one Receive returns.
	maxReceive = 500
	// company is how long a Receive waits for more once there is a message. Messages of a full queue come together and are
	// there before. What comes when nobody receives is given back by the client library, and has to travel twice.
	company = 5 * time.Millisecond
	// emptyReturns is how often the client library may return nothing, as it does when the service closes an idle link,
	// before Receive says so.
	emptyReturns = 3
	// carefulReceives is how many receives take one message each after the client library could not read one.
	carefulReceives = 20
)

var (
	_ transport.Receiver = (*receiver)(nil)
	_ transport.Renewer  = (*receiver)(nil)

	errNothing = errors.New("the link was closed several times over")
)

// receiver takes messages from a queue over a connection of its own, by several links where many Receive calls run at
// once. It outlives Close for as long as deliveries are to be settled.
type receiver struct {
	conn  *conn
	queue string // as the endpoint knows it
	path  string
	dead  bool // of its dead letters
	line  *line
	links chan *link // those that nobody receives over

	ctx  context.Context // ends with Close
	stop context.CancelCauseFunc

	all       []*link // the links
	settler   link    // for what has to be done by the lock's token alone
	receiving sync.WaitGroup

	mu     sync.Mutex // guards what follows
	closed bool
	out    map[*delivery]struct{}
}

// OpenReceiver implements [transport.Conn].
func (c *conn) OpenReceiver(ctx context.Context, opts transport.ReceiverOptions) (transport.Receiver, error) {
	path, dead, err := c.naming.queue(opts.Queue)
	if err != nil {
		return nil, err
	}
	r := &receiver{
		conn: c, queue: opts.Queue, path: path, dead: dead, line: newLine(c.ns),
		links: make(chan *link, c.links()), out: map[*delivery]struct{}{},
	}
	r.ctx, r.stop = context.WithCancelCause(c.ctx)
	for range c.links() {
		l := &link{receiver: r}
		r.all = append(r.all, l)
		r.links <- l
	}
	r.settler.receiver = r
	if err := r.look(ctx); err != nil {
		r.stop(err)
		r.line.close()
		return nil, err
	}
	if !c.adopt(r) {
		r.stop(transport.ErrClosed)
		r.line.close()
		return nil, transport.ErrClosed
	}
	return r, nil
}

// adopt has a receiver end with the conn. It returns false when that has ended already.
func (c *conn) adopt(r *receiver) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.receivers[r] = struct{}{}
	return true
}

// look makes sure that the queue is there and may be received from: by looking at a message, which takes none.
func (r *receiver) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, dialTimeout, errNoReply)
	defer cancel()
	ctx, over := r.conn.until(ctx)
	defer over()
	s, err := r.line.session(ctx)
	if err != nil {
		return err
	}
	on, off := s.on(ctx)
	defer off()
	rcv, err := r.settler.on(s)
	if err == nil {
		_, err = rcv.PeekMessages(on, 1, nil)
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return wrap(s.lostIn(ctx, err), "receive from %q", r.queue)
}

// Window implements [transport.Receiver]. Nothing is held ahead.
func (r *receiver) Window(int) {}

// Receive implements [transport.Receiver].
func (r *receiver) Receive(ctx context.Context, limit int) ([]transport.Delivery, error) {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil, transport.ErrClosed
	}
	r.receiving.Add(1)
	r.mu.Unlock()
	defer r.receiving.Done()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	var l *link
	select {
	case l = <-r.links:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-r.ctx.Done():
		return nil, transport.ErrClosed
	}
	defer func() { r.links <- l }()
	both, over := r.until(ctx)
	defer over()
	ds, err := l.receive(both, min(limit, maxReceive))
	switch {
	case err == nil:
		return ds, nil
	case r.ctx.Err() != nil:
		return nil, transport.ErrClosed
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	return nil, wrap(err, "receive from %q", r.queue)
}

// until is ctx that ends with the receiver, too.
func (r *receiver) until(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(r.ctx, func() { cancel(transport.ErrClosed) })
	return ctx, func() { stop(); cancel(nil) }
}

// Close implements [transport.Receiver]. The connection stays for what is still to be settled.
func (r *receiver) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	r.mu.Unlock()
	r.stop(transport.ErrClosed)
	r.receiving.Wait()
	for _, l := range r.all {
		l.close()
	}
	r.leave()
	return nil
}

// leave ends the connection when nobody needs it any more.
func (r *receiver) leave() {
	r.mu.Lock()
	over := r.closed && len(r.out) == 0
	r.mu.Unlock()
	if !over {
		return
	}
	r.conn.mu.Lock()
	_, mine := r.conn.receivers[r]
	delete(r.conn.receivers, r)
	r.conn.mu.Unlock()
	if mine { // else the conn closes, and ends it
		r.line.close()
	}
}

// shut ends everything: what is out goes back.
func (r *receiver) shut() {
	_ = r.Close() // never fails
	r.mu.Lock()
	left := make([]*delivery, 0, len(r.out))
	for d := range r.out {
		left = append(left, d)
	}
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(r.conn.ctx, closeTimeout)
	defer cancel()
	var all sync.WaitGroup
	for _, d := range left {
		all.Go(func() { _ = d.settle(ctx, release) }) // else its lock runs out
	}
	all.Wait()
	r.line.close()
}

// link is what messages come by. It is used by one Receive at a time, and settled by from anywhere.
type link struct {
	receiver *receiver
	careful  int // so many receives take one message each

	mu  sync.Mutex // guards what follows
	rcv *azservicebus.Receiver
	of  *session
}

// on is the library's receiver on a session.
func (l *link) on(s *session) (*azservicebus.Receiver, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rcv != nil && l.of == s {
		return l.rcv, nil
	}
	options := &azservicebus.ReceiverOptions{}
	if l.receiver.dead {
		options.SubQueue = azservicebus.SubQueueDeadLetter
	}
	rcv, err := s.client.NewReceiverForQueue(l.receiver.path, options)
	if err != nil {
		return nil, err
	}
	l.rcv, l.of = rcv, s
	return rcv, nil
}

// close lets no more messages come.
func (l *link) close() {
	l.mu.Lock()
	rcv, s := l.rcv, l.of
	l.mu.Unlock()
	if rcv == nil || !s.alive() {
		return
	}
	ctx, cancel := context.WithTimeout(s.ctx, closeTimeout)
	defer cancel()
	// The library gives back what came late, and waits a minute for a silent peer to say so.
	stop := context.AfterFunc(ctx, func() { _ = s.socket.Close() })
	defer stop()
	_ = rcv.Close(ctx) // what is left ends with the session
}

// receive returns at least one message or an error.
func (l *link) receive(ctx context.Context, limit int) ([]transport.Delivery, error) {
	for range emptyReturns {
		s, err := l.receiver.line.session(ctx)
		if err != nil {
			return nil, err
		}
		rcv, err := l.on(s)
		if err != nil {
			return nil, s.lostIn(ctx, err)
		}
		if l.careful > 0 {
			l.careful--
			limit = 1
		}
		msgs, err := l.call(ctx, s, rcv, limit)
		if len(msgs) > 0 {
			return l.receiver.hand(msgs, s, rcv), nil
		}
		if err != nil || ctx.Err() != nil {
			return nil, errors.Join(err, ctx.Err())
		}
		if !s.alive() {
			return nil, errLost
		}
	}
	return nil, errNothing
}

// call receives by the library. It panics over a message with a property of its own names in another type; all that came with such a
// message stays locked until the locks run out, so that then messages come one by one, until the broker gives this one up.
func (l *link) call(ctx context.Context, s *session, rcv *azservicebus.Receiver, limit int) (msgs []*azservicebus.ReceivedMessage, err error) {
	defer func() {
		if v := recover(); v != nil {
			l.careful = carefulReceives
			err = fmt.Errorf("the client library cannot read a message: %v", v)
		}
	}()
	on, over := s.on(ctx)
	defer over()
	msgs, err = rcv.ReceiveMessages(on, limit, &azservicebus.ReceiveMessagesOptions{TimeAfterFirstMessage: company})
	return msgs, s.lostIn(ctx, err)
}

// hand makes deliveries.
func (r *receiver) hand(msgs []*azservicebus.ReceivedMessage, s *session, rcv *azservicebus.Receiver) []transport.Delivery {
	ds := make([]transport.Delivery, len(msgs))
	owned := make([]delivery, len(msgs))
	for i, raw := range msgs {
		d := &owned[i]
		d.receiver, d.raw, d.session, d.rcv = r, raw, s, rcv
		d.message = translated(decode(raw), r.conn.config.Translate)
		d.turn = make(chan struct{}, 1)
		ds[i] = d
	}
	r.mu.Lock()
	for i := range owned {
		r.out[&owned[i]] = struct{}{}
	}
	r.mu.Unlock()
	return ds
}

// gone notes that a delivery is settled or lost.
func (r *receiver) gone(d *delivery) {
	r.mu.Lock()
	delete(r.out, d)
	last := r.closed && len(r.out) == 0
	r.mu.Unlock()
	if last {
		r.conn.start(r.leave)
	}
}

// held is how many deliveries are out.
func (r *receiver) held() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.out)
}

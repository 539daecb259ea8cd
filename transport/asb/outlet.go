package asb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/holdfast-go/holdfast/internal/batch"
	"github.com/holdfast-go/holdfast/transport"
)

const (
	// sendTimeout bounds a request to send, whoever waits for it.
	sendTimeout = 30 * time.Second
	// flushers is how many requests to one destination are under way at once before others gather, and then as many again.
	flushers = 2
	// groupsPerFlush is how many Dispatch calls share requests.
	groupsPerFlush = 100
	// denialPause is the least time between two requests to a destination that refuses all of them.
	denialPause = time.Second
)

// outlet is a queue or topic that is sent to. It shares requests among those who send at once.
type outlet struct {
	conn   *conn
	entity string
	groups *batch.Batcher[[]*parcel]
	direct atomic.Int32 // requests by those who wait for them
	denial denial
	absent atomic.Int64 // when the topic was found missing twice in a row, in Unix nanoseconds

	mu      sync.Mutex // guards what follows; never held over a request
	current *sender    // nil before the first use
	closed  bool
	old     sync.WaitGroup // senders that are being closed
}

func newOutlet(c *conn, entity string) *outlet {
	o := &outlet{conn: c, entity: entity}
	o.groups = batch.New(batch.Config[[]*parcel]{Flush: o.flush, Flushers: flushers, MaxItems: groupsPerFlush})
	return o
}

// send sends a group in its order and waits for its outcome. While the namespace is throttled it waits: nothing has been sent then.
func (o *outlet) send(ctx context.Context, group []*parcel) {
	o.paced(ctx, group, o.sendOnce)
}

// paced sends a group by do, and again what the service refused because the namespace is throttled. The results are in the parcels.
func (o *outlet) paced(ctx context.Context, group []*parcel, do func(context.Context, []*parcel)) {
	for began := time.Now(); len(group) > 0; {
		own, err := o.turn(ctx, began, group[0].publish)
		if err != nil {
			o.settleAll(group, o.conn.orClosed(err))
			return
		}
		do(ctx, group)
		if missing := o.unconfirmed(group); len(missing) > 0 {
			do(ctx, missing)
		}
		group = o.outcomes(own, group)
	}
}

// turn waits until a request may be made, within sendTimeout from the beginning. It fails where the destination refuses all requests.
// A topic is asked for each time: it may have been created for its first subscription.
func (o *outlet) turn(ctx context.Context, began time.Time, publish bool) (turn, error) {
	if err := o.denial.check(time.Now()); err != nil && (!publish || !errors.Is(err, transport.ErrNoQueue)) {
		return turn{}, err
	}
	if own, ok := o.conn.sending.throttle.try(); ok {
		return own, nil
	}
	ctx, end := o.conn.until(ctx)
	defer end()
	ctx, cancel := context.WithDeadlineCause(ctx, began.Add(sendTimeout), errNoReply)
	defer cancel()
	own, err := o.conn.sending.throttle.wait(ctx)
	if err != nil {
		err = o.unsent(fmt.Errorf("%w: %w", errBusy, err))
	}
	return own, err
}

// settleAll fails a group, but for publishes to a topic that does not exist.
func (o *outlet) settleAll(group []*parcel, err error) {
	for _, p := range group {
		p.err = err
		p.err = o.result(p)
	}
}

// outcomes ends a turn with the outcome of a group, and returns the parcels that the service refused because the namespace is throttled.
func (o *outlet) outcomes(own turn, group []*parcel) (busy []*parcel) {
	var failed, throttled error
	for _, p := range group {
		if errors.Is(p.err, errBusy) {
			busy, throttled = append(busy, p), p.err
			p.err = nil
			continue
		}
		failed = cmp.Or(failed, p.err)
		p.err = o.result(p)
	}
	own.end(cmp.Or(throttled, failed))
	return busy
}

// sendOnce makes a request for a group. While few send at once each makes its own, which spares
// a change of goroutines; else they gather.
func (o *outlet) sendOnce(ctx context.Context, group []*parcel) {
	defer o.direct.Add(-1)
	if o.direct.Add(1) > flushers {
		o.gather(ctx, group)
		return
	}
	if err := o.request(ctx, group); err != nil {
		fail(group, o.conn.orClosed(err))
	}
}

// gather has a group sent together with those of others.
func (o *outlet) gather(ctx context.Context, group []*parcel) {
	// The flusher may work on after ctx has ended: it has its own copies.
	own := make([]*parcel, len(group))
	for i, p := range group {
		copied := *p
		own[i] = &copied
	}
	switch err := o.groups.Do(ctx, own); {
	case errors.Is(err, batch.ErrAbandoned):
		fail(group, fmt.Errorf("asb: send to %q: %w: %w", o.entity, context.Cause(ctx), transport.ErrOutcomeUnknown))
	case errors.Is(err, batch.ErrClosed):
		fail(group, transport.ErrClosed)
	case err != nil:
		fail(group, err)
	default:
		for i, p := range own {
			group[i].err = p.err
		}
	}
}

// flush sends groups together: what fits into a batch as one request.
func (o *outlet) flush(groups [][]*parcel, errs []error) {
	if err := o.request(o.conn.ctx, groups...); err != nil {
		for i := range errs {
			errs[i] = err
		}
	}
}

// request sends groups. Unless it returns an error, the results are in the parcels.
func (o *outlet) request(ctx context.Context, groups ...[]*parcel) error {
	return o.transmit(ctx, func(ctx context.Context, t *transmission) error {
		for _, group := range groups {
			for _, p := range group {
				t.add(ctx, p)
			}
		}
		t.flush(ctx)
		return nil
	})
}

// transmit has something done over a sender, if there is one, in a bounded time that ends with the conn.
func (o *outlet) transmit(ctx context.Context, do func(context.Context, *transmission) error) error {
	ctx, end := o.conn.until(ctx)
	defer end()
	ctx, cancel := context.WithTimeoutCause(ctx, sendTimeout, errNoReply)
	defer cancel()
	s, err := o.borrow(ctx)
	if err != nil {
		o.denial.note(err)
		return err
	}
	on, over := s.of.on(ctx)
	defer over()
	t := transmission{outlet: o, sender: s}
	defer func() {
		if t.denied != nil || !t.broken {
			o.denial.note(t.denied)
		}
		o.giveBack(s, t.broken)
	}()
	return do(on, &t)
}

func (o *outlet) close() {
	o.groups.Close()
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	o.old.Wait()
}

// transmission is a flush: it gathers a batch and sends it when the next parcel does not fit.
type transmission struct {
	*outlet
	sender *sender
	batch  *azservicebus.MessageBatch
	in     []*parcel // the batch's
	broken bool      // the sender
	denied error     // why the service refused a whole request: nothing more is asked for
}

func (t *transmission) add(ctx context.Context, p *parcel) {
	if p.msg.SessionID != nil || p.msg.PartitionKey != nil { // a batch has one of each
		t.flush(ctx)
		t.single(ctx, p)
		return
	}
	t.in = append(t.in, p)
	if len(t.in) == 1 {
		return // a batch of one is not worth the wrapping
	}
	if t.fits(ctx, p) {
		return
	}
	t.in = t.in[:len(t.in)-1]
	t.flush(ctx)
	t.in = append(t.in, p)
}

// fits puts a parcel into the batch.
func (t *transmission) fits(ctx context.Context, p *parcel) bool {
	if t.batch != nil {
		return t.batch.AddMessage(p.msg, nil) == nil
	}
	batch, err := t.sender.NewMessageBatch(ctx, nil)
	if err != nil || batch.AddMessage(t.in[0].msg, nil) != nil || batch.AddMessage(p.msg, nil) != nil {
		return false
	}
	t.batch = batch
	return true
}

// flush sends what has been gathered. A batch that is refused for one of its messages is sent in single messages, so that it does
// not fail the others.
func (t *transmission) flush(ctx context.Context) {
	in, batch := t.in, t.batch
	t.in, t.batch = nil, nil
	if batch == nil || t.denied != nil {
		t.singles(ctx, in)
		return
	}
	err := t.sender.SendMessageBatch(ctx, batch, nil)
	switch {
	case err == nil:
	case refused(err) && !whole(err):
		t.singles(ctx, in)
	default:
		fail(in, t.outcome(ctx, err))
	}
}

func (t *transmission) singles(ctx context.Context, in []*parcel) {
	for _, p := range in {
		t.single(ctx, p)
	}
}

// single sends a message by itself. After a refusal of the whole request nothing more is asked for.
func (t *transmission) single(ctx context.Context, p *parcel) {
	if t.denied != nil {
		p.err = t.denied
		return
	}
	err := t.sender.SendMessage(ctx, p.msg, nil)
	if errors.Is(err, azservicebus.ErrMessageTooLarge) && p.slim() {
		err = t.sender.SendMessage(ctx, p.msg, nil)
	}
	if err != nil && refused(err) && !whole(err) && p.bare() {
		err = t.sender.SendMessage(ctx, p.msg, nil)
	}
	if err != nil {
		p.err = t.outcome(ctx, t.sized(p, err))
	}
}

// sized is err with numbers where a message is too large for the namespace. The broker does not say its own.
func (t *transmission) sized(p *parcel, err error) error {
	if errors.Is(err, azservicebus.ErrMessageTooLarge) || errors.Is(plain(err), transport.ErrTooLarge) {
		return &transport.TooLargeError{What: "message", Size: p.size, Max: p.size - 1}
	}
	return err
}

// unsent is the error of what was certainly not sent. It is a refusal only where the broker has said no to this, and not to all that
// comes.
func (o *outlet) unsent(err error) error {
	own := plain(err)
	if oneOf(own, errBusy, errFailed) || !refused(err) && !errors.Is(own, transport.ErrClosed) {
		own = fmt.Errorf("%w: %w", transport.ErrUnreachable, own)
	}
	return fmt.Errorf("asb: send to %q: %w", o.entity, own)
}

// outcome is what an error of a request means for a message: unless it was refused it may have been accepted.
func (t *transmission) outcome(ctx context.Context, err error) error {
	if errors.Is(err, transport.ErrTooLarge) {
		return fmt.Errorf("asb: send to %q: %w", t.entity, err)
	}
	if refused(err) {
		own := t.unsent(err)
		if whole(err) {
			t.denied = own
		}
		return own
	}
	t.broken = true
	if !t.sender.of.alive() {
		err = errLost
	} else if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return fmt.Errorf("asb: send to %q: %w: %w", t.entity, plain(err), transport.ErrOutcomeUnknown)
}

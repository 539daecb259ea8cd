package asb

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/holdfast-go/holdfast/internal/backoff"
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
	// busyTries is how often a request is repeated that the service refused because it is throttled: nothing has happened then.
	busyTries = 4
)

// outlet is a queue or topic that is sent to. It shares requests among those who send at once.
type outlet struct {
	conn   *conn
	entity string
	groups *batch.Batcher[[]*parcel]
	direct atomic.Int32 // requests by those who wait for them

	mu      sync.Mutex // guards what follows; never held over a request
	current *sender    // nil before the first use
	closed  bool
	old     sync.WaitGroup // senders that are being closed
}

func newOutlet(c *conn, entity string) *outlet {
	o := &outlet{conn: c, entity: entity}
	o.groups = batch.New(flushers, groupsPerFlush, o.flush)
	return o
}

// send sends a group in its order and waits for what comes of it. While few send at once each makes its own request, which spares
// a change of goroutines; else they gather.
func (o *outlet) send(ctx context.Context, group []*parcel) {
	defer o.direct.Add(-1)
	if o.direct.Add(1) > flushers {
		o.gather(ctx, group)
		return
	}
	if err := o.request(ctx, group); err != nil {
		fail(group, o.conn.orClosed(err))
	}
	for _, p := range group {
		p.err = o.result(p)
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
		fail(group, o.result(&parcel{publish: group[0].publish, err: err}))
	default:
		for i, p := range own {
			group[i].err = o.result(p)
		}
	}
}

// result is what a parcel's error means. A topic that does not exist has no subscribers.
func (o *outlet) result(p *parcel) error {
	if p.publish && errors.Is(p.err, transport.ErrNoQueue) {
		o.conn.tellDropped(o.entity, p.err)
		return nil
	}
	return p.err
}

func (c *conn) tellDropped(topic string, err error) {
	c.mu.Lock()
	told := c.dropped[topic]
	c.dropped[topic] = true
	c.mu.Unlock()
	if !told {
		c.log.Info("events of a topic that does not exist go to nobody, for there are no subscribers", "topic", topic, "err", err)
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
		return err
	}
	on, over := s.of.on(ctx)
	defer over()
	t := transmission{outlet: o, sender: s}
	defer func() { o.giveBack(s, t.broken) }()
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

// flush sends what has been gathered. A batch that is refused is sent in single messages, so that one does not fail the
// others.
func (t *transmission) flush(ctx context.Context) {
	in, batch := t.in, t.batch
	t.in, t.batch = nil, nil
	if batch == nil {
		for _, p := range in {
			t.single(ctx, p)
		}
		return
	}
	err := t.try(ctx, func() error { return t.sender.SendMessageBatch(ctx, batch, nil) })
	switch {
	case err == nil:
	case refused(err) && !errors.Is(plain(err), errBusy):
		for _, p := range in {
			t.single(ctx, p)
		}
	default:
		fail(in, t.outcome(ctx, err))
	}
}

func (t *transmission) single(ctx context.Context, p *parcel) {
	err := t.try(ctx, func() error { return t.sender.SendMessage(ctx, p.msg, nil) })
	if err != nil {
		p.err = t.outcome(ctx, t.sized(p, err))
	}
}

// sized is err with numbers where a message is too large for the namespace. The broker does not say its own.
func (t *transmission) sized(p *parcel, err error) error {
	if errors.Is(err, azservicebus.ErrMessageTooLarge) {
		return &transport.TooLargeError{What: "message", Size: p.size, Max: p.size - 1}
	}
	return err
}

// try repeats what the service refuses while it is throttled.
func (t *transmission) try(ctx context.Context, send func() error) error {
	pause := backoff.Backoff{Min: 100 * time.Millisecond, Max: 2 * time.Second}
	for n := 1; ; n++ {
		err := send()
		if n == busyTries || !refused(err) || !errors.Is(plain(err), errBusy) || pause.Wait(ctx) != nil {
			return err
		}
	}
}

// unsent is the error of what was certainly not sent. It is a refusal only where the broker has said no to this, and not to all that
// comes.
func (o *outlet) unsent(err error) error {
	own := plain(err)
	if errors.Is(own, errBusy) || !refused(err) && !errors.Is(own, transport.ErrClosed) {
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
		return t.unsent(err)
	}
	t.broken = true
	if !t.sender.of.alive() {
		err = errLost
	} else if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return fmt.Errorf("asb: send to %q: %w: %w", t.entity, plain(err), transport.ErrOutcomeUnknown)
}

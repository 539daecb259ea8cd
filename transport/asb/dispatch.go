package asb

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

// parcel is an operation, ready to be sent.
type parcel struct {
	msg     *azservicebus.Message
	size    int
	due     time.Time // when to schedule it by a request, which has a receipt; else zero
	publish bool
	isCopy  bool     // of a received message
	again   []string // names of properties that the received message had
	err     error
	receipt transport.Receipt
}

// slim leaves out of a copy what its properties and its headers both say, so that a message that just had room in the
// namespace has room again. It reports whether anything was left out.
func (p *parcel) slim() bool {
	if !p.isCopy {
		return false
	}
	headers, before := p.msg.ApplicationProperties, len(p.msg.ApplicationProperties)
	for name, said := range map[string]*string{
		header.ReplyToAddress: p.msg.ReplyTo, header.CorrelationID: p.msg.CorrelationID, header.ContentType: p.msg.ContentType,
	} {
		if said != nil && headers[name] == *said {
			delete(headers, name)
		}
	}
	_, identified := headers[header.MessageID]
	if identified {
		p.msg.MessageID = nil
	}
	return identified || len(headers) < before
}

// bare leaves out the properties that the received message had: a copy without them is better than none. It reports
// whether there were any.
func (p *parcel) bare() bool {
	for _, name := range p.again {
		*propertyOf(p.msg, name) = nil
	}
	had := len(p.again) > 0
	p.again = nil
	return had
}

// Dispatch implements [transport.Conn]. What goes to one destination leaves in its order, in as few batches as
// possible; destinations do not wait for each other. Nothing is sent twice by itself, except that the client library
// repeats what met a link that the service had closed.
func (c *conn) Dispatch(ctx context.Context, ops []transport.Operation) ([]transport.Receipt, error) {
	if c.isClosed() {
		return nil, transport.FailAll(len(ops), transport.ErrClosed)
	}
	if ctx.Err() != nil {
		return nil, transport.FailAll(len(ops), context.Cause(ctx))
	}
	if len(ops) == 1 {
		return c.dispatchOne(ctx, &ops[0])
	}
	parcels := make([]parcel, len(ops))
	byEntity := map[string][]*parcel{}
	now := time.Now()
	for i := range ops {
		if entity := c.pack(&ops[i], &parcels[i], now); parcels[i].err == nil {
			byEntity[entity] = append(byEntity[entity], &parcels[i])
		}
	}
	var all sync.WaitGroup
	for entity, group := range byEntity {
		if len(byEntity) == 1 {
			c.deliver(ctx, entity, group)
			break
		}
		all.Go(func() { c.deliver(ctx, entity, group) })
	}
	all.Wait()
	return results(parcels)
}

func (c *conn) dispatchOne(ctx context.Context, op *transport.Operation) ([]transport.Receipt, error) {
	var parcels [1]parcel
	if entity := c.pack(op, &parcels[0], time.Now()); parcels[0].err == nil {
		c.deliver(ctx, entity, []*parcel{&parcels[0]})
	}
	return results(parcels[:])
}

func results(parcels []parcel) ([]transport.Receipt, error) {
	var receipts []transport.Receipt
	var failed []transport.OpError
	for i := range parcels {
		if parcels[i].err != nil {
			failed = append(failed, transport.OpError{Index: i, Err: parcels[i].err})
		}
		if parcels[i].receipt.Cancel != "" {
			if receipts == nil {
				receipts = make([]transport.Receipt, len(parcels))
			}
			receipts[i] = parcels[i].receipt
		}
	}
	if failed != nil {
		return receipts, &transport.DispatchError{Ops: failed, Total: len(parcels)}
	}
	return receipts, nil
}

// pack makes a parcel and says where it goes.
func (c *conn) pack(op *transport.Operation, p *parcel, now time.Time) (entity string) {
	name, stamps := op.Queue, []string(nil)
	if op.Queue == "" {
		if len(op.Types) == 0 {
			p.err = errors.New("asb: an operation has neither a queue nor types")
			return ""
		}
		to := c.config.Topology.publishTo(op.Types)
		name, p.publish = to.topic, true
		if to.shared {
			stamps = op.Types
		}
	}
	if entity, p.err = c.naming.entity(name); p.err != nil {
		return ""
	}
	if p.msg, p.err = encode(op, stamps); p.err != nil {
		return ""
	}
	p.isCopy, p.again = op.Message.NativeID != "", sendAgain(p.msg, op.Message.Native)
	if p.size, p.err = c.sizes.check(p.msg, p.isCopy); p.err != nil && p.bare() {
		p.size, p.err = c.sizes.check(p.msg, p.isCopy)
	}
	if p.err != nil {
		p.err = fmt.Errorf("asb: send to %q: %w", name, p.err)
		return ""
	}
	if d := op.Delay(now); d > 0 {
		at := due(now.Add(d))
		if op.Receipt && p.size <= mostManaged {
			p.due = at
		} else {
			p.msg.ScheduledEnqueueTime = &at
		}
	}
	return entity
}

// deliver sends what goes to one queue or topic. Its results are in the parcels.
func (c *conn) deliver(ctx context.Context, entity string, group []*parcel) {
	o, err := c.outlet(entity)
	if err != nil {
		fail(group, err)
		return
	}
	if !slices.ContainsFunc(group, func(p *parcel) bool { return !p.due.IsZero() }) {
		o.send(ctx, group)
		return
	}
	later := slices.DeleteFunc(slices.Clone(group), func(p *parcel) bool { return p.due.IsZero() })
	at := slices.DeleteFunc(slices.Clone(group), func(p *parcel) bool { return !p.due.IsZero() })
	if len(at) > 0 {
		o.send(ctx, at)
	}
	o.schedule(ctx, later)
}

func fail(group []*parcel, err error) {
	for _, p := range group {
		p.err = err
	}
}

func (c *conn) outlet(entity string) (*outlet, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, transport.ErrClosed
	}
	o := c.outlets[entity]
	if o == nil {
		o = newOutlet(c, entity)
		c.outlets[entity] = o
	}
	return o, nil
}

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

// outgoing is a message that is ready to be sent, with the result of sending it.
type outgoing struct {
	msg     *azservicebus.Message
	size    int
	due     time.Time // of a message to be scheduled in a request, which has a receipt; else zero
	publish bool
	isCopy  bool     // of a received message
	again   []string // names of properties copied from the received message
	err     error
	receipt transport.Receipt
}

// slim removes from a copy the headers that repeat properties: a message of the maximum size must have room again. It
// reports whether there were any.
func (m *outgoing) slim() bool {
	if !m.isCopy {
		return false
	}
	headers, before := m.msg.ApplicationProperties, len(m.msg.ApplicationProperties)
	for name, property := range map[string]*string{
		header.ReplyToAddress: m.msg.ReplyTo, header.CorrelationID: m.msg.CorrelationID, header.ContentType: m.msg.ContentType,
	} {
		if property != nil && headers[name] == *property {
			delete(headers, name)
		}
	}
	_, identified := headers[header.MessageID]
	if identified {
		m.msg.MessageID = nil
	}
	return identified || len(headers) < before
}

// bare removes the properties copied from the received message: a copy without them is better than none. It reports
// whether there were any.
func (m *outgoing) bare() bool {
	for _, name := range m.again {
		*propertyOf(m.msg, name) = nil
	}
	had := len(m.again) > 0
	m.again = nil
	return had
}

// Dispatch implements [transport.Conn]. Messages to one destination are sent in their order, in as few batches as
// possible; destinations do not wait for each other. The driver does not repeat a send whose outcome is unknown, but
// the client library repeats a send over a link that the service had closed.
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
	messages := make([]outgoing, len(ops))
	byEntity := map[string][]*outgoing{}
	now := time.Now()
	for i := range ops {
		if entity := c.prepare(&ops[i], &messages[i], now); messages[i].err == nil {
			byEntity[entity] = append(byEntity[entity], &messages[i])
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
	return results(messages)
}

func (c *conn) dispatchOne(ctx context.Context, op *transport.Operation) ([]transport.Receipt, error) {
	var messages [1]outgoing
	if entity := c.prepare(op, &messages[0], time.Now()); messages[0].err == nil {
		c.deliver(ctx, entity, []*outgoing{&messages[0]})
	}
	return results(messages[:])
}

func results(messages []outgoing) ([]transport.Receipt, error) {
	var receipts []transport.Receipt
	var failed []transport.OpError
	for i := range messages {
		if messages[i].err != nil {
			failed = append(failed, transport.OpError{Index: i, Err: messages[i].err})
		}
		if messages[i].receipt.Cancel != "" {
			if receipts == nil {
				receipts = make([]transport.Receipt, len(messages))
			}
			receipts[i] = messages[i].receipt
		}
	}
	if failed != nil {
		return receipts, &transport.DispatchError{Ops: failed, Total: len(messages)}
	}
	return receipts, nil
}

// prepare fills in m, and returns its destination unless it sets m.err.
func (c *conn) prepare(op *transport.Operation, m *outgoing, now time.Time) (entity string) {
	name, stamps := op.Queue, []string(nil)
	if op.Queue == "" {
		if len(op.Types) == 0 {
			m.err = errors.New("asb: an operation has neither a queue nor types")
			return ""
		}
		to := c.config.Topology.publishTo(op.Types)
		name, m.publish = to.topic, true
		if to.shared {
			stamps = op.Types
		}
	}
	if entity, m.err = c.naming.entity(name); m.err != nil {
		return ""
	}
	if m.msg, m.err = encode(op, stamps); m.err != nil {
		return ""
	}
	m.isCopy, m.again = op.Message.NativeID != "", sendAgain(m.msg, op.Message.Native)
	if m.size, m.err = c.sizes.check(m.msg, m.isCopy); m.err != nil && m.bare() {
		m.size, m.err = c.sizes.check(m.msg, m.isCopy)
	}
	if m.err != nil {
		m.err = fmt.Errorf("asb: send to %q: %w", name, m.err)
		return ""
	}
	if d := op.Delay(now); d > 0 {
		at := due(now.Add(d))
		if op.Receipt && m.size <= mostManaged {
			m.due = at
		} else {
			m.msg.ScheduledEnqueueTime = &at
		}
	}
	return entity
}

// deliver sends messages to a queue or topic. The results are in the messages.
func (c *conn) deliver(ctx context.Context, entity string, group []*outgoing) {
	s, err := c.sender(entity)
	if err != nil {
		fail(group, err)
		return
	}
	if !slices.ContainsFunc(group, func(m *outgoing) bool { return !m.due.IsZero() }) {
		s.send(ctx, group)
		return
	}
	later := slices.DeleteFunc(slices.Clone(group), func(m *outgoing) bool { return m.due.IsZero() })
	at := slices.DeleteFunc(slices.Clone(group), func(m *outgoing) bool { return !m.due.IsZero() })
	if len(at) > 0 {
		s.send(ctx, at)
	}
	s.schedule(ctx, later)
}

func fail(group []*outgoing, err error) {
	for _, m := range group {
		m.err = err
	}
}

func (c *conn) sender(entity string) (*sender, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, transport.ErrClosed
	}
	s := c.senders[entity]
	if s == nil {
		s = newSender(c, entity)
		c.senders[entity] = s
	}
	return s, nil
}

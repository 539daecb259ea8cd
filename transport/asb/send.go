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

// slim removes from a copy the headers that repeat properties: a message of the maximum size must
// have room again. It reports whether there were any.
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

// bare removes the properties copied from the received message: a copy without them is better than
// none. It reports whether there were any.
func (m *outgoing) bare() bool {
	for _, name := range m.again {
		*propertyOf(m.msg, name) = nil
	}
	had := len(m.again) > 0
	m.again = nil
	return had
}

// Dispatch implements [transport.Conn]. Messages to one destination are sent in their order, in as
// few batches as possible; destinations do not wait for each other. The driver does not repeat a
// send whose outcome is unknown, but the client library repeats a send over a link that the service
// had closed.
func (c *conn) Dispatch(ctx context.Context, ops []transport.Operation) ([]transport.Receipt, error) {
	if c.isClosed() {
		return nil, transport.FailAll(len(ops), transport.ErrClosed)
	}
	if ctx.Err() != nil {
		return nil, transport.FailAll(len(ops), context.Cause(ctx))
	}
	messages := make([]outgoing, len(ops))
	now := time.Now()
	if len(ops) == 1 {
		m := &messages[0]
		to, err := c.prepare(&ops[0], m, now)
		if m.err = err; err == nil {
			to.deliver(ctx, []*outgoing{m})
		}
		return results(messages)
	}
	groups := map[*sender][]*outgoing{}
	for i := range ops {
		to, err := c.prepare(&ops[i], &messages[i], now)
		if messages[i].err = err; err == nil {
			groups[to] = append(groups[to], &messages[i])
		}
	}
	var all sync.WaitGroup
	for to, group := range groups {
		if len(groups) == 1 {
			to.deliver(ctx, group)
			break
		}
		all.Go(func() { to.deliver(ctx, group) })
	}
	all.Wait()
	return results(messages)
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

// prepare fills in m, and returns its destination.
func (c *conn) prepare(op *transport.Operation, m *outgoing, now time.Time) (*sender, error) {
	entity, err := c.form(op, m, now)
	if err != nil {
		return nil, err
	}
	return c.sender(entity)
}

// Check implements [transport.Checker].
func (c *conn) Check(op *transport.Operation) error {
	_, err := c.form(op, new(outgoing), time.Now())
	return err
}

// form fills in m, and returns the queue or topic that it is for. It fails if the operation is
// refused for its content.
func (c *conn) form(op *transport.Operation, m *outgoing, now time.Time) (entity string, err error) {
	name, stamps := op.Queue, []string(nil)
	if op.Queue == "" {
		if len(op.Types) == 0 {
			return "", errors.New("asb: an operation has neither a queue nor types")
		}
		to := c.ns.Topology.publishTo(op.Types)
		name, m.publish = to.topic, true
		if to.shared {
			stamps = op.Types
		}
	}
	if entity, err = c.naming.entity(name); err != nil {
		return "", err
	}
	if m.msg, err = encode(op, stamps); err != nil {
		return "", err
	}
	m.isCopy, m.again = op.Message.NativeID != "", sendAgain(m.msg, op.Message.Native)
	if err := checkText(m.msg, m.isCopy); err != nil {
		return "", fmt.Errorf("asb: send to %q: %w", name, err)
	}
	if m.size, err = checkSize(m.msg, c.ns.MaxMessageSize, m.isCopy); err != nil && m.bare() {
		m.size, err = checkSize(m.msg, c.ns.MaxMessageSize, m.isCopy)
	}
	if err != nil {
		return "", fmt.Errorf("asb: send to %q: %w", name, err)
	}
	if d := op.Delay(now); d > 0 {
		at := due(now.Add(d))
		if op.Receipt && m.size <= mostManaged {
			m.due = at
		} else {
			m.msg.ScheduledEnqueueTime = &at
		}
	}
	return entity, nil
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

func fail(group []*outgoing, err error) {
	for _, m := range group {
		m.err = err
	}
}

package asb

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/batch"
	"github.com/holdfast-go/holdfast/transport"
)

// senders are the senders of a conn, by their queues and topics.
type senders struct {
	*core

	mu   sync.Mutex         // guards open
	open map[string]*sender // nil after Close
}

// close closes the senders. No further one can be opened.
func (ss *senders) close() {
	ss.mu.Lock()
	open := ss.open
	ss.open = nil
	ss.mu.Unlock()
	var all sync.WaitGroup
	for _, s := range open {
		all.Go(s.close)
	}
	all.Wait()
}

func (ss *senders) sender(entity string) (*sender, error) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.open == nil {
		return nil, transport.ErrClosed
	}
	s := ss.open[entity]
	if s == nil {
		s = &sender{of: ss, entity: entity}
		s.groups = batch.New(batch.Config[[]*outgoing]{Flush: s.flush, Flushers: flushers, MaxItems: groupsPerFlush})
		ss.open[entity] = s
	}
	return s, nil
}

// Dispatch implements [transport.Conn]. Messages to one destination are sent in their order, in as
// few batches as possible; destinations do not wait for each other. The driver does not repeat a
// send whose outcome is unknown, but the client library repeats a send over a link that the service
// had closed.
func (ss *senders) Dispatch(
	ctx context.Context, ops []transport.Operation,
) ([]transport.Receipt, error) {
	if ss.isClosed() {
		return nil, transport.FailAll(len(ops), transport.ErrClosed)
	}
	if ctx.Err() != nil {
		return nil, transport.FailAll(len(ops), context.Cause(ctx))
	}
	messages := make([]outgoing, len(ops))
	now := time.Now()
	if len(ops) == 1 {
		m := &messages[0]
		to, err := ss.prepare(&ops[0], m, now)
		if m.err = err; err == nil {
			to.deliver(ctx, []*outgoing{m})
		}
		return results(messages)
	}
	groups := map[*sender][]*outgoing{}
	for i := range ops {
		to, err := ss.prepare(&ops[i], &messages[i], now)
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
func (ss *senders) prepare(op *transport.Operation, m *outgoing, now time.Time) (*sender, error) {
	entity, err := ss.form(op, m, now)
	if err != nil {
		return nil, err
	}
	return ss.sender(entity)
}

// Check implements [transport.Checker].
func (ss *senders) Check(op *transport.Operation) error {
	_, err := ss.form(op, new(outgoing), time.Now())
	return err
}

// form fills in m, and returns the queue or topic that it is for. It fails if the operation is
// refused for its content.
func (ss *senders) form(
	op *transport.Operation, m *outgoing, now time.Time,
) (entity string, err error) {
	name, stamps := op.Queue, []string(nil)
	if op.Queue == "" {
		if len(op.Types) == 0 {
			return "", errors.New("asb: an operation has neither a queue nor types")
		}
		to := ss.ns.Topology.publishTo(op.Types)
		name, m.publish = to.topic, true
		if to.shared {
			stamps = op.Types
		}
	}
	if entity, err = ss.naming.entity(name); err != nil {
		return "", err
	}
	if m.msg, err = encode(op, stamps); err != nil {
		return "", err
	}
	m.isCopy, m.again = op.Message.NativeID != "", sendAgain(m.msg, op.Message.Native)
	if err := checkText(m.msg, m.isCopy); err != nil {
		return "", fmt.Errorf("asb: send to %q: %w", name, err)
	}
	if m.size, err = checkSize(m.msg, ss.ns.MaxMessageSize, m.isCopy); err != nil && m.bare() {
		m.size, err = checkSize(m.msg, ss.ns.MaxMessageSize, m.isCopy)
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

// Cancel implements [transport.Canceler].
func (ss *senders) Cancel(ctx context.Context, handle string) error {
	number, entity, ok := parseReceipt(handle)
	if !ok {
		return fmt.Errorf("asb: receipt %.100q: %w", handle, transport.ErrNotFound)
	}
	s, err := ss.sender(entity)
	if err != nil {
		return err
	}
	for began := time.Now(); ; {
		own, err := s.turn(ctx, began, false)
		if err == nil {
			err = s.withLink(ctx, func(ctx context.Context, b *messageBatch) error { return b.cancel(ctx, number) })
			own.end(err)
		}
		switch {
		case own.of != nil && errors.Is(err, errBusy):
			continue
		case oneOf(err, transport.ErrNoQueue, transport.ErrNotFound): // the queue or the message
			return fmt.Errorf("asb: cancel message %d of %q: %w", number, entity, transport.ErrNotFound)
		}
		return err
	}
}

// forgetDenials permits a request to every destination.
func (ss *senders) forgetDenials() {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for _, s := range ss.open {
		s.denial.note(nil)
	}
}

// knowTopic notes that a topic exists.
func (ss *senders) knowTopic(path string) error {
	s, err := ss.sender(path)
	if err == nil {
		s.existed.Store(true)
	}
	return err
}

// alreadyCancelled is in the answer when another request is cancelling the message, such as an
// earlier one whose answer was lost.
const alreadyCancelled = "already being cancelled"

// receipt names a scheduled message by its number and destination.
func receipt(number int64, entity string) string {
	return strconv.FormatInt(number, 10) + "@" + entity
}

func parseReceipt(handle string) (number int64, entity string, ok bool) {
	digits, entity, ok := strings.Cut(handle, "@")
	number, err := strconv.ParseInt(digits, 10, 64)
	return number, entity, ok && err == nil && validEntity(entity)
}

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

func fail(group []*outgoing, err error) {
	for _, m := range group {
		m.err = err
	}
}

package sqs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/holdfast-go/holdfast/delayeddelivery"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/batch"
	"github.com/holdfast-go/holdfast/transport"
)

// sender is the part of a conn that sends.
type sender struct {
	*account
	rooms   cache[int]                 // size limits of queues and topics: their owners may change them
	sending pace                       // of sends to all destinations
	denied  sync.Map                   // *pace by queue and topic to which sending was denied
	chain   delayeddelivery.DelayChain // awsChain, but for tests

	mu       sync.Mutex // guards batchers
	batchers map[destination]*batch.Batcher[entry]
}

// Dispatch sends the operations for one queue or topic together and in order, and those for
// different ones concurrently.
func (s *sender) Dispatch(
	ctx context.Context, ops []transport.Operation,
) ([]transport.Receipt, error) {
	switch {
	case s.closed():
		return nil, transport.FailAll(len(ops), transport.ErrClosed)
	case ctx.Err() != nil:
		return nil, transport.FailAll(len(ops), context.Cause(ctx))
	}
	d := dispatch{by: s, errs: make([]error, len(ops)), now: time.Now()}
	for i := range ops {
		if err := d.add(ctx, i, &ops[i]); err != nil {
			d.errs[i] = beforeSending(err)
		}
	}
	d.send(ctx)
	return nil, dispatchError(d.errs)
}

// dispatch is one call of Dispatch.
type dispatch struct {
	by    *sender
	now   time.Time
	parts []*part

	mu   sync.Mutex // guards errs while the parts are sent
	errs []error    // of each operation
}

// part has the entries for one queue or topic.
type part struct {
	to      *batch.Batcher[entry]
	entries []entry
	indexes []int // of the operations; one that is published to several topics is in several parts
}

// add encodes an operation and adds it to the parts of its destinations.
func (d *dispatch) add(ctx context.Context, i int, op *transport.Operation) error {
	s, delay := d.by, op.Delay(d.now)
	if err := s.refusal(op, delay); err != nil {
		return err
	}
	p := s.encode(op.Message, d.now, delay, op.TTL)
	if isCopy(op) { // it must not be refused for its size
		room, err := s.roomForCopy(ctx, op.Queue, p.size(), delay)
		if err != nil {
			return err
		}
		for _, f := range []form{raw, packed} {
			if p.size() > room {
				p = s.encodeAs(f, op.Message, d.now, delay, op.TTL)
			}
		}
		p = p.withBinaries(op.Message.Native, room, hopAttributes)
	}
	if op.Queue == "" {
		return d.addPublish(ctx, i, op, p, delay)
	}
	return d.addSend(ctx, i, op, p, delay)
}

// isCopy reports whether an operation sends a copy of a received message.
func isCopy(op *transport.Operation) bool { return op.Message.NativeID != "" && op.Queue != "" }

// Check implements [transport.Checker].
func (s *sender) Check(op *transport.Operation) error { return s.refusal(op, op.Delay(time.Now())) }

// refusal returns the error of an operation that is refused for its content.
func (s *sender) refusal(op *transport.Operation, delay time.Duration) error {
	limits := s.Limits()
	switch {
	case op.Message == nil, op.Queue == "" && len(op.Types) == 0:
		return errors.New("sqs: the operation has no message, or neither a queue nor types")
	case len(op.Message.Body) > limits.MaxBody && !isCopy(op):
		return &transport.TooLargeError{What: "body", Size: len(op.Message.Body), Max: limits.MaxBody}
	case op.Message.Headers.Size() > limits.MaxHeaders && !isCopy(op):
		return &transport.TooLargeError{What: "headers", Size: op.Message.Headers.Size(), Max: limits.MaxHeaders}
	case op.Message.Headers.Len() >= header.MaxCount: // with the id, its receiver could not read it
		return &transport.TooLargeError{What: "header count", Size: op.Message.Headers.Len(), Max: header.MaxCount - 1}
	case delay > limits.MaxDelay:
		return fmt.Errorf("sqs: a delay of %v is over the longest, %v", delay, limits.MaxDelay)
	}
	if name, found := op.Message.Headers.NotUTF8(); found && !isCopy(op) { // JSON has no such text
		return fmt.Errorf("sqs: the header %.100q, or its value, is not valid UTF-8: %w", name, transport.ErrContent)
	}
	return nil
}

func (d *dispatch) addSend(
	ctx context.Context, i int, op *transport.Operation, p payload, delay time.Duration,
) error {
	s := d.by
	queue, e := op.Queue, entry{payload: p}
	if delay <= maxDelay {
		e.delay = wholeDelay(delay)
	} else {
		var err error
		if queue, e, err = s.longDelay(ctx, op, delay, p); err != nil {
			return err
		}
	}
	room, err := s.roomIn(ctx, queue, e.size())
	if err != nil {
		return err
	}
	to, err := s.queueSender(ctx, queue)
	if err != nil {
		return err
	}
	return d.put(i, to, e, room)
}

// roomForCopy returns the size limit of a copy that is sent to a queue.
func (s *sender) roomForCopy(
	ctx context.Context, queue string, size int, delay time.Duration,
) (int, error) {
	room, err := s.roomIn(ctx, queue, size)
	if err != nil || delay <= maxDelay {
		return room, err
	}
	waits, err := s.roomIn(ctx, queue+delaySuffix, size)
	if err != nil {
		return 0, s.noDelayQueue(ctx, queue, err)
	}
	return min(room, waits) - frame, nil // a hop adds attributes
}

// wholeDelay returns a delay in SQS's whole seconds, rounded up.
func wholeDelay(d time.Duration) int32 {
	return int32((d + time.Second - 1) / time.Second) //nolint:gosec // at most maxDelay
}

// addPublish adds a message to the parts of its topics: SNS knows no base types. Nor does it know
// delays: the receiver of each subscriber delays the message.
func (d *dispatch) addPublish(
	ctx context.Context, i int, op *transport.Operation, p payload, delay time.Duration,
) error {
	types := d.by.cfg.EventTopics.ofPublish(op.Types)
	topics := make([]string, len(types))
	for n, typeName := range types {
		var err error
		if topics[n], err = d.by.topicARN(ctx, typeName); err != nil {
			return err
		}
	}
	if delay > 0 {
		p.attributes = append(p.attributes, attribute{dueAt, strconv.FormatInt(d.now.Add(delay).UnixMicro(), 10)})
	}
	for n, arn := range topics {
		e := entry{payload: p}
		if len(topics) > 1 {
			e.attributes = append(slices.Clip(p.attributes), attribute{copyAttribute, strconv.Itoa(n)})
		}
		room, err := d.by.roomOf(ctx, arn, e.size())
		if err != nil {
			return err
		}
		if err := d.put(i, d.by.topicSender(arn), e, room); err != nil {
			return err
		}
	}
	return nil
}

// put adds an entry to the part of its destination, which accepts room bytes.
func (d *dispatch) put(i int, to *batch.Batcher[entry], e entry, room int) error {
	if n := e.size(); n > room {
		return &transport.TooLargeError{What: "message", Size: n, Max: room}
	}
	at := slices.IndexFunc(d.parts, func(p *part) bool { return p.to == to })
	if at < 0 {
		at = len(d.parts)
		d.parts = append(d.parts, &part{to: to})
	}
	p := d.parts[at]
	p.entries, p.indexes = append(p.entries, e), append(p.indexes, i)
	return nil
}

// send sends all parts and waits for the answers.
func (d *dispatch) send(ctx context.Context) {
	if len(d.parts) == 1 {
		d.sendPart(ctx, d.parts[0])
		return
	}
	var all sync.WaitGroup
	for _, p := range d.parts {
		all.Go(func() { d.sendPart(ctx, p) })
	}
	all.Wait()
}

func (d *dispatch) sendPart(ctx context.Context, p *part) {
	errs := p.to.DoAll(ctx, p.entries)
	d.mu.Lock()
	defer d.mu.Unlock()
	for n, err := range errs {
		if i := p.indexes[n]; d.errs[i] == nil {
			d.errs[i] = batchError(err)
		}
	}
}

// dispatchError returns the error of a dispatch from those of its operations.
func dispatchError(errs []error) error {
	var failed []transport.OpError
	for i, err := range errs {
		if err != nil {
			failed = append(failed, transport.OpError{Index: i, Err: err})
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return &transport.DispatchError{Ops: failed, Total: len(errs)}
}

// encode returns the payload of a message that is due after delay and expires ttl later.
func (s *sender) encode(m *transport.Message, now time.Time, delay, ttl time.Duration) payload {
	if s.cfg.RawBody {
		return s.encodeAs(raw, m, now, delay, ttl)
	}
	return s.encodeAs(wrapped, m, now, delay, ttl)
}

func (s *sender) encodeAs(
	write form, m *transport.Message, now time.Time, delay, ttl time.Duration,
) payload {
	headers := m.Headers
	if ttl > 0 && ttl < longest-delay { // else it expires in centuries
		headers = m.Headers.Clone()
		if delay > maxDelay { // SQS's SentTimestamp is that of the last hop then
			headers.Set(expiresAt, strconv.FormatInt(now.Add(delay+ttl).UnixMicro(), 10))
		} else {
			headers.Set(timeToBeReceived, header.FormatDuration(delay+ttl))
		}
	}
	p := write(headers, m.Body)
	if m.ID != "" && m.ID != m.Headers.Get(header.MessageID) && allowed(m.ID) {
		p.attributes = append(p.attributes, attribute{header.MessageID, m.ID})
	}
	if len(p.attributes) == 0 && !named(&headers) {
		p.attributes = append(p.attributes, attribute{bodyAttribute, asBase64}) // or it could be JSON of another producer
	}
	p.group = s.groupOf(m)
	return p
}

// maxGroup is the longest message group id.
const maxGroup = 128

// groupOf returns the message group id of a message: the value of the configured header, else the
// group of the received message; "" if neither is valid.
func (s *sender) groupOf(m *transport.Message) string {
	if group := m.Headers.Get(s.cfg.GroupHeader); s.cfg.GroupHeader != "" && isGroup(group) {
		return group
	}
	if group := m.Native[messageGroup]; isGroup(group) {
		return group
	}
	return ""
}

// isGroup reports whether SQS accepts a text as message group id.
func isGroup(s string) bool {
	return s != "" && len(s) <= maxGroup && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7F })
}

// roomIn returns the size limit of a queue in bytes: the configured limit if the queue has no lower
// one.
func (s *sender) roomIn(ctx context.Context, queue string, size int) (int, error) {
	n, err := s.room(queue, size, s.cfg.MaxMessage, func() (string, error) {
		return s.queueAttribute(ctx, queue, types.QueueAttributeNameMaximumMessageSize)
	})
	return min(n, s.cfg.MaxMessage), err
}

// roomOf returns the size limit of a topic in bytes: 256 KiB unless the topic has a higher one.
func (s *sender) roomOf(ctx context.Context, arn string, size int) (int, error) {
	return s.room(arn, size, maxPublished, func() (string, error) {
		return s.topicAttribute(ctx, arn, "MaximumMessageSize")
	})
}

// room returns the size limit of a queue or topic. It requests the limit only for a message over
// 256 KiB, the former limit of SQS and SNS, and returns unknown if the request is denied.
func (s *sender) room(name string, size, unknown int, request func() (string, error)) (int, error) {
	if n, ok := s.rooms.get(name); ok {
		return n, nil
	}
	if size <= minMessage {
		return unknown, nil
	}
	limit, err := request()
	if err != nil && !isDenied(err) && !hasCode(err, noTopicCodes) {
		return 0, err
	}
	n, err := strconv.Atoi(limit)
	if err != nil {
		n = unknown
	}
	s.rooms.set(name, n)
	return n, nil
}

// allowedSize finds the limit of a queue, a topic or a batch in an error of AWS.
var allowedSize = regexp.MustCompile(`(?:shorter|longer) than (\d+) bytes`)

// sized returns own, the error of a message that was refused with err. If err is about the size, it
// adds a TooLargeError and caches the limit of the queue or topic of that name. If err is about the
// content otherwise, it adds ErrContent.
func (s *sender) sized(name string, e *entry, own, err error) error {
	said := allowedSize.FindStringSubmatch(err.Error())
	if said == nil {
		if hasCode(err, contentCodes) {
			return fmt.Errorf("%w: %w", transport.ErrContent, own)
		}
		return own
	}
	most, err := strconv.Atoi(said[1])
	if err != nil || e.size() <= most {
		return own
	}
	s.rooms.set(name, most)
	return fmt.Errorf("%w: %w", &transport.TooLargeError{What: "message", Size: e.size(), Max: most}, own)
}

// payload is a message in the form of SQS and SNS.
type payload struct {
	body       string
	attributes []attribute
	typed      map[string]types.MessageAttributeValue // attributes that are not of type String; for SQS only
	group      string                                 // message group id; "" is none
}

// attribute is a message attribute of type String.
type attribute struct{ name, value string }

func (a *attribute) size() int { return len(a.name) + len(textType) + len(a.value) }

// size is what counts against the limit: bytes, of the attributes' names, types and values too.
func (p *payload) size() int {
	n := len(p.body)
	for _, a := range p.attributes {
		n += a.size()
	}
	for name, a := range p.typed {
		n += len(name) + len(value(a.DataType)) + len(value(a.StringValue)) + len(a.BinaryValue)
	}
	return n
}

// textType is the data type of attributes.
const textType = "String"

// isTyped reports whether an attribute is of another type.
func isTyped(a types.MessageAttributeValue) bool {
	return a.StringValue == nil || a.DataType != nil && *a.DataType != textType
}

// take adds the attributes of a received message as they are.
func (p *payload) take(attributes map[string]types.MessageAttributeValue) {
	for name, a := range attributes {
		if !isTyped(a) {
			p.attributes = append(p.attributes, attribute{name, *a.StringValue})
			continue
		}
		if p.typed == nil {
			p.typed = make(map[string]types.MessageAttributeValue)
		}
		p.typed[name] = a
	}
}

// sent are the attributes as SQS takes them; nil when there are none.
func (p *payload) sent() map[string]types.MessageAttributeValue {
	if len(p.attributes)+len(p.typed) == 0 {
		return nil
	}
	all := make(map[string]types.MessageAttributeValue, len(p.attributes)+len(p.typed))
	for _, a := range p.attributes {
		all[a.name] = types.MessageAttributeValue{DataType: aws.String(textType), StringValue: &a.value}
	}
	maps.Copy(all, p.typed)
	return all
}

// entry is a message on its way to one queue or topic.
type entry struct {
	payload
	delay int32  // seconds that SQS keeps it back
	dedup string // deduplication id, for FIFO queues
}

package sqs

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/holdfast-go/holdfast/delayeddelivery"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

// maxDelay is the longest delay of SQS.
const maxDelay = 15 * time.Minute

// awsChain is for longer delays: each queue has a delay queue of the same name with delaySuffix, in
// which its messages wait for maxDelay at a time, and from which its endpoint sends them on.
// NServiceBus's endpoints do the same, and each understands the other's messages.
var awsChain = delayeddelivery.DelayChain{Longest: maxDelay, Step: time.Second}

const (
	// delaySeconds is NServiceBus's attribute with the rest of the delay when a message is sent to
	// a delay queue.
	delaySeconds = "NServiceBus.AmazonSQS.DelaySeconds"
	// hopDue is when a message in a delay queue is due, in milliseconds since 1970 by SQS's clock.
	// The rest of the delay is rounded up at each hop, which would add up to hours in a year.
	hopDue = ours + "Hop.Due"
	// hopGroup is the message group id of the message at its destination. In a delay queue each
	// deferral is a group.
	hopGroup = ours + "Hop.Group"
	// hopNow is when such a message was received, likewise. It is a native property and never sent.
	hopNow = ours + "Hop.Now"
	// hopTyped stands before the name of a message attribute that is not of type String, likewise.
	hopTyped = ours + "Hop.Typed."
	// rememberedHops is the number of deferrals that are recorded as sent on.
	rememberedHops = 10_000
	// hopAttributes is the number of attributes that delay queues add to a message.
	hopAttributes = 4
	// maxAttributes is the number of attributes that SQS accepts on a message.
	maxAttributes = 10
)

// longDelay returns the delay queue of a message with a delay over maxDelay, and its entry there.
// The entry has the message's id in an attribute, because NServiceBus's endpoints use SQS's own id
// otherwise.
func (s *sender) longDelay(
	ctx context.Context, op *transport.Operation, delay time.Duration, p payload,
) (string, entry, error) {
	waits := op.Queue + delaySuffix
	if _, err := s.queueURL(ctx, waits); err != nil {
		return "", entry{}, s.noDelayQueue(ctx, op.Queue, err)
	}
	if id := op.Message.ID; id != "" && allowed(id) {
		p.attributes = append(p.without(header.MessageID), attribute{header.MessageID, id})
	}
	hop := delayeddelivery.Hop{Message: op.Message.ID, Deferral: rand.Text(), Number: 1}
	wait, _ := s.chain.Next(delay)
	return waits, s.hopEntry(&p, hop, wait, time.Time{}), nil
}

// noDelayQueue returns the error of a message whose delay queue cannot be used because of err.
func (s *sender) noDelayQueue(ctx context.Context, queue string, err error) error {
	if _, missing := s.queueURL(ctx, queue); missing != nil || !errors.Is(err, transport.ErrNoQueue) {
		return errors.Join(missing, err)
	}
	return fmt.Errorf("%w: queue %q takes no delays over %v before its endpoint creates that one, by Install or "+
		"\"holdfast endpoint create\"", err, queue, maxDelay)
}

// hopEntry returns the entry of a message for a hop. due is zero before the time of SQS's clock is
// known.
func (s *sender) hopEntry(
	p *payload, hop delayeddelivery.Hop, left time.Duration, due time.Time,
) entry {
	e := entry{payload: *p, dedup: hop.ID()}
	e.group = hop.Group()
	e.attributes = append(p.without(delaySeconds, hopDue, hopGroup), attribute{delaySeconds, inSeconds(left)})
	if p.group != "" {
		s.addIfItFits(&e, attribute{hopGroup, p.group})
	}
	if !due.IsZero() {
		s.addIfItFits(&e, attribute{hopDue, strconv.FormatInt(due.UnixMilli(), 10)})
	}
	return e
}

// addIfItFits adds an attribute that is useful but not needed: a message that SQS accepted once
// must not become too large.
func (s *sender) addIfItFits(e *entry, a attribute) {
	if len(e.attributes)+len(e.typed) < maxAttributes && e.size()+a.size() <= s.cfg.MaxMessage {
		e.attributes = append(e.attributes, a)
	}
}

// without returns the attributes except those with the names.
func (p *payload) without(names ...string) []attribute {
	return slices.DeleteFunc(slices.Clone(p.attributes), func(a attribute) bool { return slices.Contains(names, a.name) })
}

// sendOn returns the handler of a queue's delay queue. It sends the message, unchanged, to the
// queue or to the delay queue again.
func (sa *satellites) sendOn(
	queue string,
) func(context.Context, *transport.Message) ([]transport.Operation, error) {
	return func(ctx context.Context, m *transport.Message) ([]transport.Operation, error) {
		h := readHop(m)
		if sa.sentOn.Has(h.hop) {
			return nil, nil
		}
		to, e := sa.onward(queue, &h)
		if err := sa.sender.send(ctx, to, e); err != nil {
			return nil, err
		}
		sa.sentOn.Add(h.hop)
		return nil, nil
	}
}

// onward returns the next queue of a message that waited for queue, and its entry there.
func (sa *satellites) onward(queue string, h *hopping) (to string, e entry) {
	left, hop := sa.sender.chain.Next(h.due.Sub(h.now))
	if hop {
		return queue + delaySuffix, sa.sender.hopEntry(&h.payload, h.hop.Next(), left, h.due)
	}
	e = entry{payload: h.payload, delay: wholeDelay(left)}
	e.attributes = h.without(delaySeconds, hopDue, hopGroup)
	sa.sender.addIfItFits(&e, attribute{hopAttribute, h.hop.Group()})
	return queue, e
}

// asHop returns a message of a delay queue that was received at now, by SQS's clock. Its attributes
// are the headers, and its body is unchanged.
func asHop(m *types.Message, now time.Time) received {
	var r received
	r.NativeID, r.Body = value(m.MessageId), []byte(value(m.Body))
	r.Native = make(map[string]string, len(m.Attributes)+1)
	maps.Copy(r.Native, m.Attributes)
	for name, a := range m.MessageAttributes {
		if isTyped(a) && (name != delaySeconds || a.StringValue == nil) {
			r.Native[hopTyped+name] = typedText(a)
			continue
		}
		r.Headers.Set(name, *a.StringValue)
	}
	if r.ID = r.Headers.Get(header.MessageID); r.ID == "" {
		r.ID = m.Attributes[deduplicationID] // as NServiceBus's endpoints do
	}
	r.Native[hopNow] = strconv.FormatInt(now.UnixMilli(), 10)
	return r
}

// typedText returns an attribute that is not of type String as text; typedOf reads it.
func typedText(a types.MessageAttributeValue) string {
	if a.BinaryValue != nil {
		return value(a.DataType) + " b" + string(a.BinaryValue)
	}
	return value(a.DataType) + " s" + value(a.StringValue)
}

func typedOf(text string) types.MessageAttributeValue {
	dataType, rest, _ := strings.Cut(text, " ")
	a := types.MessageAttributeValue{DataType: &dataType}
	if bytes, ok := strings.CutPrefix(rest, "b"); ok {
		a.BinaryValue = []byte(bytes)
		return a
	}
	a.StringValue = aws.String(strings.TrimPrefix(rest, "s"))
	return a
}

// hopping is a message of a delay queue.
type hopping struct {
	payload
	hop delayeddelivery.Hop
	due time.Time // by SQS's clock, as now
	now time.Time
}

// readHop reads a message that asHop returned.
func readHop(m *transport.Message) hopping {
	sent, first := milliTime(m.Native[sentTimestamp]), milliTime(m.Native[firstReceived])
	h := hopping{now: first, hop: delayeddelivery.HopOf(m.Native[deduplicationID], sent)}
	h.body, h.group = string(m.Body), m.Headers.Get(hopGroup)
	for name, value := range m.Headers.All() {
		h.attributes = append(h.attributes, attribute{name, value})
	}
	for name, text := range m.Native {
		if name, ok := strings.CutPrefix(name, hopTyped); ok {
			if h.typed == nil {
				h.typed = make(map[string]types.MessageAttributeValue)
			}
			h.typed[name] = typedOf(text)
		}
	}
	// SQS reports the time of the first delivery. The time of a later one is less exact.
	if now := milliTime(m.Native[hopNow]); m.Native[receiveCount] != "1" && now.After(first) {
		h.now = now
	}
	seconds, err := strconv.ParseInt(m.Headers.Get(delaySeconds), 10, 64)
	if sent.IsZero() { // an emulator may not report it: late is better than early
		sent = h.now
	}
	if err == nil {
		h.due = sent.Add(time.Duration(min(seconds, int64(longest/time.Second))) * time.Second)
	}
	if due := milliTime(m.Headers.Get(hopDue)); !due.IsZero() {
		h.due = due
	}
	return h
}

func milliTime(s string) time.Time { return unixTime(s, time.UnixMilli) }

// satellites is the part of a conn that handles the messages of delay queues and dead-letter queues.
type satellites struct {
	*account
	sender *sender
	sentOn delayeddelivery.Memory // messages that wait for long
}

// Satellites implements [transport.Satellites]: the dead-letter queue and the delay queues of the
// endpoint, if they exist.
func (sa *satellites) Satellites(ctx context.Context) ([]transport.Satellite, error) {
	if sa.endpoint == "" {
		return nil, nil
	}
	dead := sa.endpoint + DeadLettersSuffix
	all := []transport.Satellite{{Queue: dead, Handle: sa.deadLettered}}
	if !sa.cfg.ShortDelays {
		for _, queue := range []string{sa.endpoint, sa.endpoint + "-" + sa.instance} {
			all = append(all, transport.Satellite{
				Queue: queue + delaySuffix, Handle: sa.sendOn(queue), Concurrency: maxBatch,
			})
		}
	}
	errs := make([]error, len(all))
	var asking sync.WaitGroup
	for i, s := range all {
		asking.Go(func() { _, errs[i] = sa.queueURL(ctx, s.Queue) })
	}
	asking.Wait()
	var found []transport.Satellite
	var failed error
	for i, s := range all {
		switch err := errs[i]; {
		case err == nil:
			found = append(found, s)
		case !errors.Is(err, transport.ErrNoQueue):
			failed = errors.Join(failed, err)
		case s.Queue == dead && sa.cfg.ReceiveLimit > 0:
			sa.log.InfoContext(ctx, "the dead-letter queue does not exist: Install creates it, and sets it on queues that it "+
				"creates afterwards", "queue", dead)
		}
	}
	return found, failed
}

// deadLettered returns the reason why SQS moved a message to the dead-letter queue.
func (sa *satellites) deadLettered(
	_ context.Context, m *transport.Message,
) ([]transport.Operation, error) {
	from := sa.endpoint
	if arn := m.Native[deadLetteredIn]; arn != "" && !sa.isCalled(sa.endpoint, nameOf(arn)) {
		from = nameOf(arn)
	}
	return nil, &transport.DeadLetteredError{
		Queue: from, Count: sa.cfg.ReceiveLimit,
		Reason: "it was received more often than the queue's maxReceiveCount allows",
	}
}

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
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/holdfast-go/holdfast/delayeddelivery"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

// maxDelay is the longest that SQS itself keeps a message back.
const maxDelay = 15 * time.Minute

// awsChain are for longer delays: each queue has another one of the same name with delaySuffix, in which messages for it wait
// for maxDelay at a time. Its owner sends them on. So do NServiceBus's endpoints, and each understands the other's messages.
var awsChain = delayeddelivery.DelayChain{Longest: maxDelay, Step: time.Second}

const (
	// delaySeconds is the attribute with what is left of a delay when a message is sent to hop: NServiceBus's.
	delaySeconds = "NServiceBus.AmazonSQS.DelaySeconds"
	// hopDue is when a message that hops is due, in milliseconds since 1970 by SQS's clock: what is left is rounded up at each
	// hop, which would add up to hours in a year.
	hopDue = ours + "Hop.Due"
	// hopGroup is the message group id that a message is to have at its destination: while it hops, each deferral is a group.
	hopGroup = ours + "Hop.Group"
	// hopNow is when such a message came, likewise. It is written nowhere but into its native properties.
	hopNow = ours + "Hop.Now"
	// hopTyped stands before the name of a message attribute that is not of type String, likewise.
	hopTyped = ours + "Hop.Typed."
	// rememberedHops is how many deferrals are known to have been sent on.
	rememberedHops = 10_000
	// hopsAtOnce is how many messages are sent on at the same time: as many as share a request.
	hopsAtOnce = most
	// maxAttributes is how many attributes a message may have.
	maxAttributes = 10
)

// longDelay is the queue at which a message for another one waits longer than maxDelay, and the message as it goes there: with its
// id beside it, because NServiceBus's endpoints put SQS's own there otherwise.
func (c *conn) longDelay(ctx context.Context, op *transport.Operation, delay time.Duration, p payload) (string, entry, error) {
	waits := op.Queue + delaySuffix
	if _, err := c.queueURL(ctx, waits); err != nil {
		return "", entry{}, c.noHops(ctx, op.Queue, err)
	}
	if id := op.Message.ID; id != "" && allowed(id) {
		p.attributes = append(p.without(header.MessageID), attribute{header.MessageID, id})
	}
	hop := delayeddelivery.Hop{Message: op.Message.ID, Deferral: rand.Text(), Number: 1}
	wait, _ := c.chain.Next(delay)
	return waits, c.hopEntry(&p, hop, wait, time.Time{}), nil
}

// noHops is the error of a message that cannot hop.
func (c *conn) noHops(ctx context.Context, queue string, err error) error {
	if _, missing := c.queueURL(ctx, queue); missing != nil || !errors.Is(err, transport.ErrNoQueue) {
		return errors.Join(missing, err)
	}
	return fmt.Errorf("%w: queue %q takes no delays over %v before its endpoint creates that one, by Install or \"holdfast sqs endpoint create\"",
		err, queue, maxDelay)
}

// hopEntry returns the entry of a message for a hop. due is zero before the time of SQS's clock is known.
func (c *conn) hopEntry(p *payload, hop delayeddelivery.Hop, left time.Duration, due time.Time) entry {
	e := entry{payload: *p, dedup: hop.ID()}
	e.group = hop.Group()
	e.attributes = append(p.without(delaySeconds, hopDue, hopGroup), attribute{delaySeconds, inSeconds(left)})
	if p.group != "" {
		c.addIfItFits(&e, attribute{hopGroup, p.group})
	}
	if !due.IsZero() {
		c.addIfItFits(&e, attribute{hopDue, strconv.FormatInt(due.UnixMilli(), 10)})
	}
	return e
}

// addIfItFits adds an attribute that is of use and not needed: what SQS took once must not become too large on its way.
func (c *conn) addIfItFits(e *entry, a attribute) {
	if len(e.attributes)+len(e.typed) < maxAttributes && e.size()+a.size() <= c.cfg.MaxMessage {
		e.attributes = append(e.attributes, a)
	}
}

// without are the attributes but for some.
func (p *payload) without(names ...string) []attribute {
	return slices.DeleteFunc(slices.Clone(p.attributes), func(a attribute) bool { return slices.Contains(names, a.name) })
}

// sendOn is what is done with a message that comes out of the queue in which those for another one wait: it goes there, or hops
// again. It goes as it came, whatever form it is in.
func (c *conn) sendOn(queue string) func(context.Context, *transport.Message) ([]transport.Operation, error) {
	return func(ctx context.Context, m *transport.Message) ([]transport.Operation, error) {
		h := readHop(m)
		if c.sentOn.Has(h.hop) {
			return nil, nil
		}
		to, e := c.onward(queue, &h)
		sender, err := c.sender(ctx, to)
		if err != nil {
			return nil, err
		}
		if err := sender.do(ctx, []entry{e})[0]; err != nil {
			return nil, err
		}
		c.sentOn.Add(h.hop)
		return nil, nil
	}
}

// onward is where a message goes next that has waited for a queue, and how.
func (c *conn) onward(queue string, h *hopping) (to string, e entry) {
	left, hop := c.chain.Next(h.due.Sub(h.now))
	if hop {
		return queue + delaySuffix, c.hopEntry(&h.payload, h.hop.Next(), left, h.due)
	}
	e = entry{payload: h.payload, delay: wholeDelay(left)}
	e.attributes = h.without(delaySeconds, hopDue, hopGroup)
	c.addIfItFits(&e, attribute{hopAttribute, h.hop.Group()})
	return queue, e
}

// asHop is a message that has waited, and comes now, by SQS's clock: its attributes are its headers, its body is as it came.
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
		r.ID = m.Attributes[deduplicationID] // NServiceBus has it there, too
	}
	r.Native[hopNow] = strconv.FormatInt(now.UnixMilli(), 10)
	return r
}

// typedText writes an attribute that is not of type String as text, for typedOf to read.
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

// hopping is a message that comes out of the queue in which it has waited.
type hopping struct {
	payload
	hop delayeddelivery.Hop
	due time.Time // by SQS's clock, as now
	now time.Time
}

// readHop reads what asHop has made of it.
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
	// SQS itself says when the first hand-out was. The time of a later one is less exact.
	if now := milliTime(m.Native[hopNow]); m.Native[receiveCount] != "1" && now.After(first) {
		h.now = now
	}
	seconds, err := strconv.ParseInt(m.Headers.Get(delaySeconds), 10, 64)
	if sent.IsZero() { // a stand-in may not know it: rather late than early
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

func milliTime(s string) time.Time {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.UnixMilli(n)
}

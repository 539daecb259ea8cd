package sqs

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/batch"
	"github.com/holdfast-go/holdfast/transport"
)

// inFlight is the in-flight set of a queue: the deliveries that are not settled, and the batchers
// that settle them. It outlives its receivers.
type inFlight struct {
	of        *receiving
	queue     string
	url       string
	deletes   *batch.Batcher[settling]
	hides     *batch.Batcher[settling]
	processed processed
	pace      pace         // of receiving
	open      atomic.Int64 // number of deliveries that no caller settles

	mu   sync.Mutex           // guards held, and the copies of deliveries
	held map[string]*delivery // by SQS's message id: the latest delivery of each message
}

// take makes a delivery of a polled message. An older delivery of the message loses its lease.
func (in *inFlight) take(m *types.Message, p *poll) (*delivery, received) {
	var r received
	if strings.HasSuffix(in.queue, delaySuffix) {
		r = asHop(m, p.came.Add(p.skew))
	} else {
		r = decode(m)
	}
	d := &delivery{
		inFlight: in, message: r.Message, attempt: attemptOf(m), handle: value(m.ReceiptHandle),
		received: p.delivered(), leased: p.delivered().Add(p.lease), completesFirst: p.completesFirst,
	}
	in.mu.Lock()
	old := in.held[r.NativeID]
	in.held[r.NativeID] = d
	in.open.Add(1)
	in.mu.Unlock()
	if old != nil {
		old.lose()
	}
	return d, r
}

// deliver is take for a handler. It returns nil for a message that must not be handled: one that
// was completed before, is expired, is a redundant copy, or is not due yet.
func (in *inFlight) deliver(m *types.Message, p *poll) *delivery {
	d, r := in.take(m, p)
	now := time.Now()
	aside := func(f func(context.Context) error) {
		in.of.tasks.Go(func() {
			if err := f(in.of.ctx); err != nil && !in.of.closed() {
				in.of.log.Warn("a message that must not be handled could not be removed: it will be delivered again",
					"queue", in.queue, "message", r.ID, "err", err)
			}
		})
	}
	switch {
	case in.processed.has(r.NativeID), r.expired(now, p.skew):
		aside(d.Complete)
	case r.due.After(now):
		aside(func(ctx context.Context) error { return in.delay(ctx, d, m, r.due) })
	case in.isRedundant(d, m):
		aside(d.Complete)
	default:
		in.warnOfUnknown(d, m)
		in.warnOfEnvelope(m)
		return d
	}
	return nil
}

// delay replaces a message that is not due yet with a copy that SQS delays.
func (in *inFlight) delay(ctx context.Context, d *delivery, m *types.Message, due time.Time) error {
	e := entry{
		payload: payload{body: value(m.Body), group: m.Attributes[messageGroup]},
		delay:   wholeDelay(min(max(time.Until(due), 0), maxDelay)),
	}
	e.take(m.MessageAttributes)
	if err := in.of.sender.send(ctx, in.queue, e); err != nil {
		return err
	}
	return d.Complete(ctx)
}

// forget removes a delivery that is settled or lost.
func (in *inFlight) forget(d *delivery) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.held[d.message.NativeID] == d {
		delete(in.held, d.message.NativeID)
	}
}

// unsettled returns the deliveries of the set.
func (in *inFlight) unsettled() []*delivery {
	in.mu.Lock()
	defer in.mu.Unlock()
	return slices.Collect(maps.Values(in.held))
}

const (
	// pollWait is how long SQS waits for messages before it answers that there are none: its
	// maximum.
	pollWait = 20 * time.Second
	// answering is the time within which SQS answers if there are messages. An older poll waits for
	// some.
	answering = time.Second
)

// asking are the parameters of a poll.
type asking struct {
	limit int           // 1 or more
	wait  time.Duration // for messages if there are none; whole seconds
	lease time.Duration // for which the messages are hidden

	completesFirst bool // messages are completed before they are handled
}

// poll is a request for messages.
type poll struct {
	asking
	began time.Time
	came  time.Time
	skew  time.Duration // by which the clock of SQS is ahead of the local one
	ms    []types.Message
}

// poll requests messages. When ctx or open ends, it waits for an answer that SQS may be sending,
// and cancels a request that waits for messages. Messages that came all the same are returned if
// ctx ended, and returned to the queue if open did.
func (in *inFlight) poll(ctx, open context.Context, a asking) (*poll, error) {
	a.limit = min(a.limit, maxBatch)
	p := &poll{asking: a, began: time.Now()}
	within, cancel := context.WithTimeout(in.of.ctx, a.wait+requestTimeout)
	defer cancel()
	end := func() { time.AfterFunc(answering-time.Since(p.began), cancel) }
	defer context.AfterFunc(ctx, end)()
	defer context.AfterFunc(open, end)()
	err := in.receive(within, p)
	switch {
	case open.Err() != nil:
		in.requeue(p)
		return nil, transport.ErrClosed
	case ctx.Err() != nil && len(p.ms) == 0:
		return nil, ctx.Err()
	}
	return p, err
}

func (in *inFlight) receive(ctx context.Context, p *poll) error {
	if err := in.pace.wait(ctx); err != nil {
		return err
	}
	out, err := in.of.queues.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl:              &in.url,
		MaxNumberOfMessages:   int32(p.limit),               //nolint:gosec // at most ten
		WaitTimeSeconds:       int32(p.wait / time.Second),  //nolint:gosec // at most pollWait
		VisibilityTimeout:     int32(p.lease / time.Second), //nolint:gosec // at most maxHold
		MessageAttributeNames: []string{"All"},
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{
			receiveCount, sentTimestamp, firstReceived, messageGroup, deduplicationID, deadLetteredIn,
		},
	}, func(o *sqs.Options) { o.RetryMaxAttempts = 1 }) // the caller repeats it
	in.pace.note(err)
	p.came = time.Now()
	if err != nil {
		return in.of.fault(err, "receive from %q", in.queue)
	}
	p.ms = out.Messages
	const grain = 2 * time.Second // more than the resolution of the answer's Date header
	at, ok := awsmiddleware.GetServerTime(out.ResultMetadata)
	if skew := at.Sub(p.came); ok && skew.Abs() > grain {
		p.skew = skew
	}
	return nil
}

// delivered returns when SQS began to hide the messages of p, or a time shortly before.
func (p *poll) delivered() time.Time {
	earliest := p.came.Add(-min(answering, p.lease/10))
	if p.began.After(earliest) {
		return p.began
	}
	return earliest
}

// requeue returns p's messages to the queue.
func (in *inFlight) requeue(p *poll) {
	ds := make([]*delivery, len(p.ms))
	for i := range p.ms {
		ds[i], _ = in.take(&p.ms[i], p)
	}
	in.release(ds)
}

const (
	// copyAttribute is on the copies of a message that is published to the topics of several types:
	// the number of the type. A queue that is subscribed to several of them receives several
	// copies, and the message is to be handled once.
	copyAttribute = ours + "Copy"
	// hopAttribute is on a message that has hopped: its deferral. The last hop is repeated if its
	// outcome was unknown, and SQS does not recognize that.
	hopAttribute = ours + "Hop.Deferral"
)

// The endpoint's own copies, as for the error queue or a delayed retry, have none of these
// attributes.

// copyOf identifies a message and its copy. The zero value is a message without copies.
type copyOf struct {
	whole string // the message that is to be handled once: a published message, or a deferral of one
	which string
}

func (c copyOf) key() string { return c.whole + " " + c.which }

// markOf returns the copy that a message is.
func markOf(d *delivery, m *types.Message) copyOf {
	if which, ok := text(m, copyAttribute); ok {
		return copyOf{"published " + d.message.ID, which}
	}
	if deferral, ok := text(m, hopAttribute); ok {
		return copyOf{"deferred " + deferral, d.message.NativeID}
	}
	return copyOf{}
}

// isRedundant reports whether this process holds, or has completed, another copy of a message. If
// not, it records this one. It never relies on a copy that was not received yet: its subscription
// may be removed by now.
func (in *inFlight) isRedundant(d *delivery, m *types.Message) bool {
	own := markOf(d, m)
	if own == (copyOf{}) {
		return false
	}
	if in.processed.has(own.whole) && !in.processed.has(own.key()) {
		return true
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, other := range in.held {
		if other != d && other.copy.whole == own.whole && other.copy.which != own.which {
			return true
		}
	}
	d.copy = own
	return false
}

// late records a completion after the end of the lease. The message was handled all the same,
// unless it is completed before it is handled.
func (in *inFlight) late(d *delivery) {
	if !d.completesFirst {
		in.finished(d)
	}
}

// finished records a message that was handled, so that its other copies are not.
func (in *inFlight) finished(d *delivery) {
	in.processed.add(d.message.NativeID)
	if own := d.copy; own != (copyOf{}) {
		in.processed.add(own.key())
		in.processed.add(own.whole)
	}
}

// warnOfEnvelope logs, once for each topic, that a message has an envelope of SNS's, and that its
// body is the envelope.
func (in *inFlight) warnOfEnvelope(m *types.Message) {
	body := value(m.Body)
	if !strings.HasPrefix(body, "{") || !strings.Contains(body, `"TopicArn"`) || !strings.Contains(body, `"Notification"`) {
		return
	}
	var e struct{ Type, TopicArn, Message string }
	if json.Unmarshal([]byte(body), &e) != nil || e.Type != "Notification" || nameOf(e.TopicArn) == e.TopicArn || in.of.looks.unknowns.Load() >= maxUnknown {
		return
	}
	if _, again := in.of.looks.topics.LoadOrStore(e.TopicArn, true); !again {
		in.of.looks.unknowns.Add(1)
		in.of.log.Warn("a subscription delivers messages in SNS's envelope, so the envelope is their body: set RawMessageDelivery on the "+
			"subscription, or subscribe the endpoint again", "queue", in.queue, "topic", nameOf(e.TopicArn))
	}
}

// maxUnknown bounds the warnings of warnOfUnknown, and the memory of their types.
const maxUnknown = 100

// warnOfUnknown logs once that an event arrived by the topic of a base type alone. Its publisher
// has AllTopics or BothTopics. After it has changed to ConcreteTopic the event would not arrive.
func (in *inFlight) warnOfUnknown(d *delivery, m *types.Message) {
	of := in.of
	which, isCopy := text(m, copyAttribute)
	if !isCopy || which == "0" || !of.SubscribesDerived() {
		return
	}
	names := slices.Collect(header.TypeNames(d.message.Headers.Get(header.EnclosedMessageTypes)))
	hasBase := func(name string) bool { return of.subscriptions.isSubscribed(in.queue, name) }
	if len(names) < 2 || hasBase(names[0]) || !slices.ContainsFunc(names[1:], hasBase) {
		return
	}
	unknown := typeOfQueue{in.queue, names[0]}
	if _, noted := of.looks.unknown.Load(unknown); noted || of.looks.unknowns.Add(1) > maxUnknown {
		return
	}
	if _, noted := of.looks.unknown.Swap(unknown, struct{}{}); !noted {
		of.log.Warn("an event arrived by the topic of a base type only, and will not arrive once its publisher has "+
			`EventTopics "concrete": register its type with its base types in this endpoint's configuration`,
			"queue", in.queue, "type", names[0], "bases", names[1:])
	}
}

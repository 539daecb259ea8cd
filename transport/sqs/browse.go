package sqs

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/holdfast-go/holdfast/transport"
)

var (
	_ transport.Browser = (*conn)(nil)
	_ transport.Cursor  = (*cursor)(nil)
)

const (
	// browseLease is how long a listed message stays hidden if the process dies. Next renews it
	// when half of it is over.
	browseLease = 5 * time.Minute
	// browseWait makes SQS query all of its servers. Without a wait it may miss messages.
	browseWait = time.Second
	// emptyAnswers is the number of consecutive empty answers that mean the end of a queue.
	emptyAnswers = 2
	// newerAnswers is the same for answers with messages that were sent after Browse only: SQS
	// delivers in no certain order.
	newerAnswers = 20
	// maxInFlight is how many messages of a standard queue can be in flight, and inFlightError how
	// much SQS's count of them may be too low.
	maxInFlight   = 120_000
	inFlightError = 1_000
)

// cursor iterates over a queue. SQS cannot list messages, so each is received and stays hidden
// until the cursor is closed.
type cursor struct {
	inFlight *inFlight
	began    time.Time
	held     []*delivery
	seen     map[*transport.Message]*delivery // of the last Next
	most     int                              // deliveries of a message after which nothing more is listed; 0 for no limit
	end      bool
}

// browser is the part of a conn with which tools list messages.
type browser struct{ receiving *receiving }

// Browse implements [transport.Browser]. A listed message is hidden from receivers until the cursor
// is closed, or for five minutes if the process dies. Each listing counts as a delivery. So Browse
// fails with [transport.ErrDeliveryLimit] if the queue has a redrive policy with a low
// maxReceiveCount, and Next if a message has had half of the deliveries that a higher one permits.
func (br *browser) Browse(ctx context.Context, queue string) (transport.Cursor, error) {
	in, err := br.receiving.inFlight(ctx, queue)
	if err != nil {
		return nil, err
	}
	cur := &cursor{inFlight: in, began: time.Now()}
	switch policy, err := br.receiving.redrive(ctx, queue); {
	case isDenied(err):
		cur.most = fewReceives / 2 // as for the lowest limit that is read
	case err != nil:
		return nil, fmt.Errorf("sqs: browse queue %q: %w", queue, err)
	case policy.most > 0 && policy.most < fewReceives:
		return nil, fmt.Errorf("sqs: browse queue %q: %w: each listing is a delivery, and SQS moves a message to queue %q after %d: "+
			"remove the redrive policy of the queue", queue, transport.ErrDeliveryLimit, nameOf(policy.target), policy.most)
	case policy.most > 0:
		cur.most = int(policy.most / 2)
	}
	return cur, nil
}

// spent returns an error if a message has had so many deliveries that further listings could use up
// the rest. It does so early: SQS shows the count with a delivery only, so each refused listing
// counts as well.
func (cur *cursor) spent(p *poll) error {
	for i := range p.ms {
		if n := attemptOf(&p.ms[i]).N; cur.most > 0 && n > cur.most {
			return fmt.Errorf("sqs: list queue %q: %w: message %s has had %d deliveries, and a redrive policy moves it away some time: remove "+
				"that of the queue, or let the credentials read it (sqs:GetQueueAttributes) if the queue has none",
				cur.inFlight.queue, transport.ErrDeliveryLimit, value(p.ms[i].MessageId), n)
		}
	}
	return nil
}

// Next implements [transport.Cursor].
func (cur *cursor) Next(ctx context.Context, limit int) ([]*transport.Message, error) {
	cur.seen = make(map[*transport.Message]*delivery, limit)
	if err := cur.renew(ctx); err != nil {
		return nil, err
	}
	var ms []*transport.Message
	var empty, newer int // consecutive answers without messages, and with later ones only
	for len(ms) < limit && !cur.end {
		in := cur.inFlight
		p, err := in.poll(ctx, in.of.ctx, asking{limit: limit - len(ms), wait: browseWait, lease: browseLease})
		if err != nil {
			return nil, err
		}
		listed := cur.look(p)
		ms = append(ms, listed...)
		if err := cur.spent(p); err != nil {
			return nil, err
		}
		switch {
		case len(listed) > 0:
			empty, newer = 0, 0
		case len(p.ms) > 0:
			empty, newer = 0, newer+1
		default:
			empty++
		}
		cur.end = empty == emptyAnswers || newer == newerAnswers
	}
	if cur.end && len(ms) == 0 {
		return nil, cur.full(ctx)
	}
	return ms, nil
}

// look records p's messages, and returns those that were sent before Browse. A listed message stays
// with the caller: the cursor keeps only what it needs to take or release it.
func (cur *cursor) look(p *poll) (ms []*transport.Message) {
	for i := range p.ms {
		d, _ := cur.inFlight.take(&p.ms[i], p)
		cur.held = append(cur.held, d)
		m := d.message
		d.message = transport.Message{ID: m.ID, NativeID: m.NativeID}
		if sentAt(&p.ms[i]).After(cur.began.Add(p.skew)) {
			continue
		}
		cur.seen[&m] = d
		ms = append(ms, &m)
	}
	return ms
}

// full returns an error if the queue has so many messages in flight that SQS delivers no others:
// these are not listed.
func (cur *cursor) full(ctx context.Context) error {
	in := cur.inFlight
	text, err := in.of.queueAttribute(ctx, in.queue, types.QueueAttributeNameApproximateNumberOfMessagesNotVisible)
	if n, failed := strconv.Atoi(text); err != nil || failed != nil || n < maxInFlight-inFlightError {
		return nil //nolint:nilerr // without the right to look, the listing ends here
	}
	return fmt.Errorf("sqs: list queue %q: %s messages are in flight, and SQS delivers no more than %d at a time: the rest is not listed. "+
		"Take or discard some, and list the queue again", in.queue, text, maxInFlight)
}

// renew renews the leases of the listed messages.
func (cur *cursor) renew(ctx context.Context) error {
	var due []*delivery
	for _, d := range cur.held {
		if d.isOpen() && d.left() < browseLease/2 {
			due = append(due, d)
		}
	}
	for _, err := range cur.inFlight.renew(ctx, due, browseLease) {
		if err != nil && !errors.Is(err, transport.ErrLeaseLost) { // a lost one is listed again, or was received
			return err
		}
	}
	return nil
}

// Take implements [transport.Cursor]: it sends the operations, and then deletes the message.
func (cur *cursor) Take(
	ctx context.Context, m *transport.Message, ops []transport.Operation,
) error {
	d := cur.seen[m]
	if d == nil || !d.isOpen() || d.left() <= 0 {
		return fmt.Errorf("sqs: take a message of %q: %w", cur.inFlight.queue, transport.ErrNotFound)
	}
	of := cur.inFlight.of
	errs := make([]error, len(ops))
	for i := range ops { // before anything is sent
		if errs[i] = errNoPublish; ops[i].Queue != "" {
			_, errs[i] = of.queueURL(ctx, ops[i].Queue)
		}
	}
	if err := dispatchError(errs); err != nil {
		return err
	}
	if _, err := of.sender.Dispatch(ctx, ops); err != nil {
		return err
	}
	if err := d.Complete(ctx); err != nil {
		return fmt.Errorf("%w: %w", err, transport.ErrOutcomeUnknown)
	}
	delete(cur.seen, m)
	return nil
}

var errNoPublish = errors.New("sqs: a cursor sends to queues only")

// Close implements [transport.Cursor]. It returns the messages that were not taken to the queue.
func (cur *cursor) Close() error {
	cur.inFlight.release(cur.held)
	cur.held, cur.seen, cur.end = nil, nil, true
	return nil
}

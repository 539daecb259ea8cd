package sqs

import (
	"context"
	"time"

	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/holdfast-go/holdfast/transport"
)

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
	within, cancel := context.WithTimeout(in.conn.ctx, a.wait+requestTimeout)
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
	out, err := in.conn.queues.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
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
		return in.conn.fault(err, "receive from %q", in.queue)
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

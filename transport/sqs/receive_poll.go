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
	// pollWait is how long SQS waits for messages before it answers that there are none: the longest it offers.
	pollWait = 20 * time.Second
	// answering is within what time SQS answers when there are messages. A poll that is older waits for some.
	answering = time.Second
)

// asking says what to ask for.
type asking struct {
	limit int           // 1 or more
	wait  time.Duration // for messages, where there are none; whole seconds
	lease time.Duration // for which those that come are hidden

	completesFirst bool // what comes is completed before it is handled
}

// poll is a request for messages.
type poll struct {
	asking
	began  time.Time
	cancel context.CancelFunc
	done   chan struct{} // closed when the rest holds
	came   time.Time
	skew   time.Duration // how much the clock of SQS is ahead of ours
	ms     []types.Message
	err    error
}

// poll begins one, or returns nil after Close.
func (in *inbox) poll(a asking) *poll {
	a.limit = min(a.limit, most)
	p := &poll{asking: a, began: time.Now(), done: make(chan struct{})}
	var ctx context.Context
	ctx, p.cancel = context.WithTimeout(in.conn.ctx, a.wait+requestTimeout)
	if !in.conn.tasks.start(func() { defer p.cancel(); in.receive(ctx, p) }) {
		p.cancel()
		return nil
	}
	return p
}

func (in *inbox) receive(ctx context.Context, p *poll) {
	defer close(p.done)
	if p.err = in.pace.wait(ctx); p.err != nil {
		return
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
	}, once)
	in.pace.note(err)
	p.came = time.Now()
	if err != nil {
		p.err = in.conn.fault(err, "receive from %q", in.queue)
	} else {
		p.ms, p.skew = out.Messages, skewOf(out, p.came)
	}
}

// skewOf is the difference of the clocks, where it is more than the Date of an answer can tell, in whole seconds.
func skewOf(out *sqs.ReceiveMessageOutput, came time.Time) time.Duration {
	const grain = 2 * time.Second
	at, ok := awsmiddleware.GetServerTime(out.ResultMetadata)
	if skew := at.Sub(came); ok && skew.Abs() > grain {
		return skew
	}
	return 0
}

// once has the SDK not repeat a request: the caller does.
func once(o *sqs.Options) { o.RetryMaxAttempts = 1 }

// handedOut is when SQS began to hide the messages of p, or somewhat before.
func (p *poll) handedOut() time.Time {
	earliest := p.came.Add(-min(answering, p.lease/10))
	if p.began.After(earliest) {
		return p.began
	}
	return earliest
}

// end waits for the answer if SQS may be giving one, and breaks a poll off that waits.
func (p *poll) end() {
	patience := time.NewTimer(answering - time.Since(p.began))
	defer patience.Stop()
	select {
	case <-p.done:
	case <-patience.C:
		p.cancel()
		<-p.done
	}
}

// handOut makes deliveries of what p brought.
func (in *inbox) handOut(p *poll) []transport.Delivery {
	ds := make([]transport.Delivery, 0, len(p.ms))
	for i := range p.ms {
		if d := in.deliver(&p.ms[i], p); d != nil {
			ds = append(ds, d)
		}
	}
	return ds
}

// giveBack has what p brought handed out again.
func (in *inbox) giveBack(p *poll) {
	ds := make([]*delivery, len(p.ms))
	for i := range p.ms {
		ds[i], _ = in.take(&p.ms[i], p)
	}
	ctx, cancel := context.WithTimeout(in.conn.ctx, closeTimeout)
	defer cancel()
	in.release(ctx, ds)
}

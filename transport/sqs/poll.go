package sqs

import (
	"context"
	"time"

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

// poll is a request for messages.
type poll struct {
	limit  int
	began  time.Time
	cancel context.CancelFunc
	done   chan struct{} // closed when the rest holds
	came   time.Time
	ms     []types.Message
	err    error
}

// poll begins one, or returns nil after Close.
func (in *inbox) poll(limit int) *poll {
	p := &poll{limit: min(max(1, limit), most), began: time.Now(), done: make(chan struct{})}
	var ctx context.Context
	ctx, p.cancel = context.WithTimeout(in.conn.ctx, pollWait+requestTimeout)
	if !in.conn.tasks.start(func() { defer p.cancel(); in.receive(ctx, p) }) {
		p.cancel()
		return nil
	}
	return p
}

func (in *inbox) receive(ctx context.Context, p *poll) {
	out, err := in.conn.queues.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl:              &in.url,
		MaxNumberOfMessages:   int32(p.limit), //nolint:gosec // at most ten
		WaitTimeSeconds:       int32(pollWait / time.Second),
		VisibilityTimeout:     int32(in.conn.cfg.Lease / time.Second), //nolint:gosec // at most maxHold
		MessageAttributeNames: []string{"All"},
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{
			receiveCount, sentTimestamp, messageGroup, deadLetteredIn,
		},
	}, once)
	p.came = time.Now()
	if err != nil {
		p.err = in.conn.fault(err, "receive from %q", in.queue)
	} else {
		p.ms = out.Messages
	}
	close(p.done)
}

// once has the SDK not repeat a request: the caller does.
func once(o *sqs.Options) { o.RetryMaxAttempts = 1 }

// handedOut is when SQS began to hide the messages of p, or somewhat before.
func (p *poll) handedOut(lease time.Duration) time.Time {
	earliest := p.came.Add(-min(answering, lease/10))
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

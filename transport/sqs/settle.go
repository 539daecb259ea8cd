package sqs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/holdfast-go/holdfast/transport"
)

const (
	// completeLinger is how long a batch of completions waits for more.
	completeLinger = 20 * time.Millisecond
	// hideLinger is the same for messages that return to the queue.
	hideLinger = 5 * time.Millisecond
)

// settling is a delivery in a request to SQS.
type settling struct {
	*delivery
	seconds int32 // that SQS hides it for; 0 returns it to the queue
}

// request sends a request about the deliveries with the indexes is, and returns the failed entries.
type request func(ctx context.Context, is []int) (failures, error)

// delete deletes messages in one request, and records them as processed: SQS delivers those again
// whose lease was over, and may deliver the others again.
func (in *inFlight) delete(ctx context.Context, ss []settling) []error {
	errs := in.ask(ctx, "complete", ss, func(ctx context.Context, is []int) (failures, error) {
		req := &sqs.DeleteMessageBatchInput{QueueUrl: &in.url}
		for _, i := range is {
			e := types.DeleteMessageBatchRequestEntry{Id: idOf(i), ReceiptHandle: &ss[i].handle}
			req.Entries = append(req.Entries, e)
		}
		out, err := call(ctx, in.of.account, in.of.queues.DeleteMessageBatch, req)
		if err != nil {
			return nil, err
		}
		return out.Failed, nil
	})
	for i, err := range errs {
		switch {
		case err == nil:
			in.finished(ss[i].delivery)
		case errors.Is(err, transport.ErrLeaseLost):
			in.late(ss[i].delivery)
		}
	}
	return errs
}

// hide sets in one request for how long messages are hidden, and records the renewed leases.
func (in *inFlight) hide(ctx context.Context, ss []settling) []error {
	began := time.Now()
	verb := "change the visibility of"
	errs := in.ask(ctx, verb, ss, func(ctx context.Context, is []int) (failures, error) {
		req := &sqs.ChangeMessageVisibilityBatchInput{QueueUrl: &in.url}
		for _, i := range is {
			req.Entries = append(req.Entries, types.ChangeMessageVisibilityBatchRequestEntry{
				Id: idOf(i), ReceiptHandle: &ss[i].handle, VisibilityTimeout: ss[i].seconds,
			})
		}
		out, err := call(ctx, in.of.account, in.of.queues.ChangeMessageVisibilityBatch, req)
		if err != nil {
			return nil, err
		}
		return out.Failed, nil
	})
	for i, s := range ss {
		if s.seconds > 0 {
			s.renewed(began, s.seconds, errs[i])
		}
	}
	return errs
}

// hideAll hides ten messages in a request, and sends the requests concurrently.
func (in *inFlight) hideAll(ctx context.Context, ss []settling) []error {
	errs := make([]error, len(ss))
	var all sync.WaitGroup
	for from := 0; from < len(ss); from += maxBatch {
		all.Go(func() { copy(errs[from:], in.hide(ctx, ss[from:min(from+maxBatch, len(ss))])) })
	}
	all.Wait()
	return errs
}

// release returns the open deliveries to the queue. Those for which the request fails return when
// their lease ends.
func (in *inFlight) release(ds []*delivery) {
	ctx, cancel := context.WithTimeout(in.of.ctx, closeTimeout)
	defer cancel()
	var open []settling
	for _, d := range ds {
		if d.isOpen() {
			open = append(open, settling{delivery: d})
		}
	}
	in.hideAll(ctx, open)
}

// ask sends the request for those of ss whose lease is not over: others may have been delivered
// again. Entries that AWS failed through no fault of theirs are sent once more.
func (in *inFlight) ask(ctx context.Context, verb string, ss []settling, request request) []error {
	errs := make([]error, len(ss))
	now := time.Now()
	var is []int
	for i := range ss {
		if ss[i].overdue(now) {
			errs[i] = lostError(verb)
		} else {
			is = append(is, i)
		}
	}
	for try := 0; try < 2 && len(is) > 0; try++ {
		failed, err := request(ctx, is)
		err = in.of.fault(err, "%s messages of %q", verb, in.queue)
		for _, i := range is {
			errs[i] = err
		}
		is = nil
		for i, f := range byIndex(failed, len(ss)) {
			if tooLate(f) {
				errs[i] = lostError(verb)
				continue
			}
			errs[i] = in.of.fault(entryError(f), "%s a message of %q", verb, in.queue)
			if !f.SenderFault {
				is = append(is, i)
			}
		}
	}
	return errs
}

func lostError(verb string) error {
	return fmt.Errorf("sqs: %s a message: %w", verb, transport.ErrLeaseLost)
}

// tooLate reports whether an entry failed because the lease is over or cannot be extended.
func tooLate(f *types.BatchResultErrorEntry) bool {
	text := value(f.Message)
	return slices.Contains(lostCodes, value(f.Code)) || strings.Contains(text, "receipt handle has expired") ||
		strings.Contains(text, "not available for visibility timeout change") || strings.Contains(text, "beyond the limit")
}

// maxProcessed bounds the number of processed messages that are recorded.
const maxProcessed = 10_000

// processed records completed messages, to recognize one that SQS delivers again because its lease
// was over or although it was deleted. Another process does not recognize it. The zero value is
// ready.
type processed struct {
	mu    sync.Mutex // guards the fields below
	ids   map[string]struct{}
	order []string // a ring whose oldest entry is at next
	next  int
}

func (p *processed) add(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ids == nil {
		p.ids = make(map[string]struct{})
	}
	if _, ok := p.ids[id]; ok {
		return
	}
	p.ids[id] = struct{}{}
	if len(p.order) < maxProcessed {
		p.order = append(p.order, id)
		return
	}
	delete(p.ids, p.order[p.next])
	p.order[p.next] = id
	p.next = (p.next + 1) % maxProcessed
}

func (p *processed) has(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.ids[id]
	return ok
}

func (in *inFlight) renew(ctx context.Context, ds []*delivery, lease time.Duration) []error {
	errs := make([]error, len(ds))
	now := time.Now()
	var ss []settling
	var is []int
	for i, d := range ds {
		seconds, keep := d.renewal(now, lease)
		switch {
		case !keep:
			errs[i] = lostError("renew")
		case seconds > 0:
			ss, is = append(ss, settling{d, seconds}), append(is, i)
		}
	}
	for n, err := range in.hideAll(ctx, ss) {
		errs[is[n]] = err
	}
	return errs
}

// Renew hides messages for another lease. A message that SQS hides no longer is lost.
func (r *receiver) Renew(ctx context.Context, ds []transport.Delivery) []error {
	own := make([]*delivery, len(ds))
	for i, d := range ds {
		own[i] = d.(*delivery) //nolint:errcheck,forcetypeassert // we made it
	}
	return r.inFlight.renew(ctx, own, r.inFlight.of.cfg.Lease)
}

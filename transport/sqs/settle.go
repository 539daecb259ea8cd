package sqs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/holdfast-go/holdfast/transport"
)

const (
	// completeLinger is how long completions wait for company.
	completeLinger = 20 * time.Millisecond
	// hideLinger is how long what is given back does.
	hideLinger = 5 * time.Millisecond
)

// settling is a delivery on its way to SQS.
type settling struct {
	*delivery
	seconds int32 // that it is to be hidden for; 0 gives it back
}

// request asks SQS something about those of several deliveries that have the indexes is, and says which of them failed.
type request func(ctx context.Context, is []int) (failures, error)

type failures = []types.BatchResultErrorEntry

// delete deletes messages in one request. Those that could not be deleted in time are remembered, in case they come to us again;
// and so are the others: SQS may hand them out once more all the same.
func (in *inbox) delete(ctx context.Context, ss []settling) []error {
	errs := in.ask(ctx, "complete", ss, func(ctx context.Context, is []int) (failures, error) {
		req := &sqs.DeleteMessageBatchInput{QueueUrl: &in.url}
		for _, i := range is {
			req.Entries = append(req.Entries, types.DeleteMessageBatchRequestEntry{
				Id: aws.String(strconv.Itoa(i)), ReceiptHandle: &ss[i].handle,
			})
		}
		out, err := in.conn.queues.DeleteMessageBatch(ctx, req)
		if err != nil {
			return nil, err
		}
		return out.Failed, nil
	})
	for i := range ss {
		switch {
		case errs[i] == nil:
			in.finished(ss[i].delivery)
		case errors.Is(errs[i], transport.ErrLeaseLost):
			in.late(ss[i].delivery)
		}
	}
	return errs
}

// hide changes in one request how long messages are hidden.
func (in *inbox) hide(ctx context.Context, ss []settling) []error {
	return in.ask(ctx, "change the visibility of", ss, func(ctx context.Context, is []int) (failures, error) {
		req := &sqs.ChangeMessageVisibilityBatchInput{QueueUrl: &in.url}
		for _, i := range is {
			req.Entries = append(req.Entries, types.ChangeMessageVisibilityBatchRequestEntry{
				Id: aws.String(strconv.Itoa(i)), ReceiptHandle: &ss[i].handle, VisibilityTimeout: ss[i].seconds,
			})
		}
		out, err := in.conn.queues.ChangeMessageVisibilityBatch(ctx, req)
		if err != nil {
			return nil, err
		}
		return out.Failed, nil
	})
}

// ask has a request made for those of ss whose lease has not run out while they waited: others may have the rest. Entries that AWS
// failed through no fault of theirs are asked for once more.
func (in *inbox) ask(ctx context.Context, verb string, ss []settling, request request) []error {
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
		is = in.askOnce(ctx, verb, is, errs, request)
	}
	return errs
}

// askOnce fills in the errors of the entries is and says which ones should be asked for once more.
func (in *inbox) askOnce(ctx context.Context, verb string, is []int, errs []error, request request) (again []int) {
	ctx, cancel := in.conn.request(ctx)
	defer cancel()
	failed, err := request(ctx, is)
	if err != nil {
		err = in.conn.fault(err, "%s messages of %q", verb, in.queue)
	}
	for _, i := range is {
		errs[i] = err
	}
	for _, f := range failed {
		i, ok := indexOf(f.Id, len(errs))
		switch {
		case !ok:
		case tooLate(&f):
			errs[i] = lostError(verb)
		default:
			errs[i] = in.conn.fault(entryError(&f), "%s a message of %q", verb, in.queue)
			if !f.SenderFault {
				again = append(again, i)
			}
		}
	}
	return again
}

// release gives back what nobody has settled, as well as it can.
func (in *inbox) release(ctx context.Context, ds []*delivery) {
	var open []settling
	for _, d := range ds {
		if d.isOpen() {
			open = append(open, settling{delivery: d})
		}
	}
	var all sync.WaitGroup
	for some := range slices.Chunk(open, most) {
		all.Go(func() { in.hide(ctx, some) }) // or their leases run out
	}
	all.Wait()
}

func lostError(verb string) error {
	return fmt.Errorf("sqs: %s a message: %w", verb, transport.ErrLeaseLost)
}

// tooLate tells whether an entry failed because the message is not ours any more, or cannot be for longer.
func tooLate(f *types.BatchResultErrorEntry) bool {
	text := value(f.Message)
	return slices.Contains(lostCodes, value(f.Code)) || strings.Contains(text, "receipt handle has expired") ||
		strings.Contains(text, "not available for visibility timeout change") || strings.Contains(text, "beyond the limit")
}

// maxProcessed bounds how many messages are remembered.
const maxProcessed = 10_000

// processed remembers what was completed, for a copy that comes all the same: the lease had run out, or SQS hands a
// deleted message out once more, which it may. That is a kindness and no promise: another process may be given it.
type processed struct {
	mu    sync.Mutex // guards what follows
	ids   map[string]struct{}
	order []string // oldest first, from next on; then around
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

package sqs

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/holdfast-go/holdfast/internal/batch"
	"github.com/holdfast-go/holdfast/transport"
)

const (
	// maxBatch is the number of entries that SQS and SNS accept in a request.
	maxBatch = 10
	// maxFlushers bounds the concurrent requests of a batcher.
	maxFlushers = 8
	// sendLinger is how long a batch of sent messages waits for more.
	sendLinger = 5 * time.Millisecond
)

// newBatcher returns a batcher of requests, which are paid for one by one. It flushes in goroutines
// of c.
func newBatcher[T any](c *conn, cfg batch.Config[T], flush func([]T) []error) *batch.Batcher[T] {
	cfg.Flushers, cfg.MaxItems, cfg.Start = maxFlushers, maxBatch, c.tasks.Go
	cfg.Flush = func(items []T, errs []error) { copy(errs, flush(items)) }
	return batch.New(cfg)
}

// batchError returns err with the errors of package batch translated.
func batchError(err error) error {
	switch {
	case errors.Is(err, batch.ErrClosed):
		return transport.ErrClosed
	case errors.Is(err, batch.ErrAbandoned):
		return errAbandoned
	}
	return err
}

// errAbandoned is the error of a message whose request was not answered before the caller's context
// ended.
var errAbandoned = fmt.Errorf("sqs: no answer from AWS yet: %w", transport.ErrOutcomeUnknown)

// destination is a queue, by its address, or a topic, by its ARN.
type destination struct{ queue, topic string }

// sender returns the batcher of a queue, which must exist.
func (c *conn) sender(ctx context.Context, queue string) (*batch.Batcher[entry], error) {
	if _, err := c.queueURL(ctx, queue); err != nil {
		return nil, err
	}
	return c.senderTo(destination{queue: queue}, c.cfg.MaxMessage, func(es []entry) ([]error, []int) {
		return c.sendOnce(queue, es)
	}), nil
}

// publisher returns the batcher of a topic.
func (c *conn) publisher(arn string) *batch.Batcher[entry] {
	return c.senderTo(destination{topic: arn}, maxPublished, func(es []entry) ([]error, []int) {
		return c.publishOnce(arn, es)
	})
}

// senderTo returns a batcher that calls once with its entries, and then with each of those again by
// itself that once returns the index of.
func (c *conn) senderTo(
	to destination, maxSize int, once func([]entry) (errs []error, again []int),
) *batch.Batcher[entry] {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b, ok := c.senders[to]; ok {
		return b
	}
	cfg := batch.Config[entry]{Linger: sendLinger, MaxWeight: maxSize, Weight: func(e entry) int { return e.size() }}
	b := newBatcher(c, cfg, func(entries []entry) []error {
		entries = slices.Clone(entries) // requests point to them
		errs, again := once(entries)
		for _, i := range again {
			one, _ := once(entries[i : i+1])
			errs[i] = one[0]
		}
		return errs
	})
	c.senders[to] = b
	return b
}

// send sends one entry to a queue, with others of the same moment.
func (c *conn) send(ctx context.Context, queue string, e entry) error {
	to, err := c.sender(ctx, queue)
	if err != nil {
		return err
	}
	return batchError(to.Do(ctx, e))
}

// sendOnce sends entries to a queue in one request. again has the entries to send once more: see
// sendBatch.
func (c *conn) sendOnce(queue string, entries []entry) (errs []error, again []int) {
	url, err := c.queueURL(c.ctx, queue)
	if err != nil {
		return slices.Repeat([]error{beforeSending(err)}, len(entries)), nil
	}
	in := &sqs.SendMessageBatchInput{QueueUrl: &url, Entries: make([]types.SendMessageBatchRequestEntry, len(entries))}
	for i := range entries {
		e := &entries[i]
		in.Entries[i] = types.SendMessageBatchRequestEntry{
			Id: idOf(i), MessageBody: &e.body, DelaySeconds: e.delay, MessageAttributes: e.sent(),
			MessageGroupId: optional(e.group), MessageDeduplicationId: optional(e.dedup),
		}
	}
	verb := fmt.Sprintf("send to %q", queue)
	return c.sendBatch(queue, verb, entries, func(ctx context.Context, tried *attempts) (failures, error) {
		out, err := c.queues.SendMessageBatch(ctx, in, tried.ofSQS)
		if hasCode(err, noQueueCodes) {
			c.urls.forget(queue)
		}
		if err != nil {
			return nil, err
		}
		return out.Failed, nil
	})
}

// failures are the failed entries of a request.
type failures = []types.BatchResultErrorEntry

// sendBatch sends entries to the queue or topic of a name by one request, and returns their errors.
// verb has its object. again has the entries to send once more: those that AWS failed through no
// fault of theirs, or all if AWS refused the request and does not name the entry.
func (c *conn) sendBatch(
	name, verb string, entries []entry, request func(context.Context, *attempts) (failures, error),
) (errs []error, again []int) {
	ctx, cancel := c.request(c.ctx)
	defer cancel()
	var tried attempts
	var failed failures
	err := c.paced(ctx, name, func() (err error) {
		failed, err = request(ctx, &tried)
		return err
	})
	if err != nil {
		own := tried.outcome(c.fault(err, "%s", verb), err)
		if len(entries) == 1 {
			return []error{c.sized(name, &entries[0], own, err)}, nil
		}
		if refusedAsAWhole(err) {
			for i := range entries {
				again = append(again, i)
			}
		}
		return slices.Repeat([]error{own}, len(entries)), again
	}
	errs = make([]error, len(entries))
	for i, f := range byIndex(failed, len(entries)) {
		err := entryError(f)
		errs[i] = c.sized(name, &entries[i], c.fault(err, "%s", verb), err)
		switch {
		case throttled(err):
			c.sending.note(err)
		case f.SenderFault:
			continue
		default:
			again = append(again, i)
		}
		errs[i] = fmt.Errorf("%w: %w", errs[i], transport.ErrUnreachable)
	}
	return errs, again
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// idOf returns the id of the entry with an index in its request.
func idOf(i int) *string { return new(strconv.Itoa(i)) }

// byIndex iterates over the failed entries of a request with n entries, by their indexes.
func byIndex(failed failures, n int) iter.Seq2[int, *types.BatchResultErrorEntry] {
	return func(yield func(int, *types.BatchResultErrorEntry) bool) {
		for k := range failed {
			i, err := strconv.Atoi(value(failed[k].Id))
			if err == nil && i >= 0 && i < n && !yield(i, &failed[k]) {
				return
			}
		}
	}
}

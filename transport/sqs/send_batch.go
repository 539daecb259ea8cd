package sqs

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/holdfast-go/holdfast/transport"
)

// sendLinger is how long what is sent waits for company.
const sendLinger = 5 * time.Millisecond

// senders share requests among all who send to the same queue or topic.
type senders struct {
	mu       sync.Mutex // guards what follows
	byQueue  map[string]*gather[entry]
	byTopics map[string]*gather[entry]
}

func newSenders() senders {
	return senders{byQueue: make(map[string]*gather[entry]), byTopics: make(map[string]*gather[entry])}
}

// sender sends to a queue that exists.
func (c *conn) sender(ctx context.Context, queue string) (*gather[entry], error) {
	if _, err := c.queueURL(ctx, queue); err != nil {
		return nil, err
	}
	return c.gatherOf(c.senders.byQueue, queue, c.cfg.MaxMessage, func(es []entry) []error { return c.sendBatch(queue, es) }), nil
}

// publisher publishes to a topic.
func (c *conn) publisher(arn string) *gather[entry] {
	return c.gatherOf(c.senders.byTopics, arn, maxPublished, func(es []entry) []error { return c.publishBatch(c.ctx, arn, es) })
}

func (c *conn) gatherOf(known map[string]*gather[entry], name string, room int, flush func([]entry) []error) *gather[entry] {
	c.senders.mu.Lock()
	defer c.senders.mu.Unlock()
	g := known[name]
	if g == nil {
		g = newGather(&c.tasks, sendLinger, flush)
		g.weigh, g.room = func(e entry) int { return e.size() }, room
		known[name] = g
	}
	return g
}

// fit is how many of entries, which are not none, one request takes.
func (g *gather[T]) fit(items []T) int {
	n, weight := 0, 0
	for ; n < len(items) && n < most; n++ {
		weight += g.weigh(items[n])
		if n > 0 && weight > g.room {
			break
		}
	}
	return n
}

// sendBatch sends entries to a queue in one request. What AWS failed through no fault of the message's is sent once more, by
// itself; so is each when AWS refused them all and does not say because of which.
func (c *conn) sendBatch(queue string, entries []entry) []error {
	errs, again := c.sendOnce(queue, entries)
	for _, i := range again {
		one, _ := c.sendOnce(queue, entries[i:i+1])
		errs[i] = one[0]
	}
	return errs
}

// sendOnce sends entries in one request, and says which ones should be sent once more.
func (c *conn) sendOnce(queue string, entries []entry) (errs []error, again []int) {
	errs = make([]error, len(entries))
	ctx, cancel := c.request(context.Background())
	defer cancel()
	url, err := c.queueURL(ctx, queue)
	if err != nil {
		return all(errs, beforeSending(err)), nil
	}
	in := &sqs.SendMessageBatchInput{QueueUrl: &url, Entries: make([]types.SendMessageBatchRequestEntry, len(entries))}
	for i := range entries {
		in.Entries[i] = entries[i].request(i)
	}
	var (
		tried attempts
		out   *sqs.SendMessageBatchOutput
	)
	err = c.paced(ctx, queue, func() (err error) {
		out, err = c.queues.SendMessageBatch(ctx, in, tried.ofSQS)
		return err
	})
	if err != nil {
		if noQueueCode(errorCode(err)) {
			c.urls.forget(queue)
		}
		if len(entries) > 1 && refusedAsAWhole(err) {
			again = each(len(entries))
		}
		own := tried.outcome(c.fault(err, "send to %q", queue), err)
		if len(entries) == 1 {
			own = c.sized(queue, &entries[0], own, err)
		}
		return all(errs, own), again
	}
	for _, f := range out.Failed {
		i, ok := indexOf(f.Id, len(entries))
		if !ok {
			continue
		}
		errs[i] = c.sized(queue, &entries[i], c.fault(entryError(&f), "send to %q", queue), entryError(&f))
		if failed := entryError(&f); throttled(failed) {
			c.sending.note(failed)
			errs[i] = fmt.Errorf("%w: %w", errs[i], transport.ErrUnreachable)
		} else if !f.SenderFault {
			errs[i] = fmt.Errorf("%w: %w", errs[i], transport.ErrUnreachable)
			again = append(again, i)
		}
	}
	return errs, again
}

// each are the indexes below n.
func each(n int) []int {
	is := make([]int, n)
	for i := range is {
		is[i] = i
	}
	return is
}

func all(errs []error, err error) []error {
	for i := range errs {
		errs[i] = err
	}
	return errs
}

func (e *entry) request(i int) types.SendMessageBatchRequestEntry {
	r := types.SendMessageBatchRequestEntry{
		Id: aws.String(strconv.Itoa(i)), MessageBody: &e.body, DelaySeconds: e.delay,
		MessageGroupId: optional(e.group), MessageDeduplicationId: optional(e.dedup),
	}
	r.MessageAttributes = e.sent()
	return r
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// indexOf is the place of an entry in its request, which its id says.
func indexOf(id *string, n int) (int, bool) {
	i, err := strconv.Atoi(value(id))
	return i, err == nil && i >= 0 && i < n
}

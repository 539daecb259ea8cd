package sqs

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	snstypes "github.com/aws/aws-sdk-go-v2/service/sns/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/holdfast-go/holdfast/internal/backoff"
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
// of a.
func newBatcher[T any](a *account, cfg batch.Config[T], flush func([]T) []error) *batch.Batcher[T] {
	cfg.Flushers, cfg.MaxItems, cfg.Start = maxFlushers, maxBatch, a.tasks.Go
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

// queueSender returns the batcher of a queue, which must exist.
func (s *sender) queueSender(ctx context.Context, queue string) (*batch.Batcher[entry], error) {
	if _, err := s.queueURL(ctx, queue); err != nil {
		return nil, err
	}
	return s.senderTo(destination{queue: queue}, s.cfg.MaxMessage, func(es []entry) ([]error, []int) {
		return s.sendOnce(queue, es)
	}), nil
}

// topicSender returns the batcher of a topic.
func (s *sender) topicSender(arn string) *batch.Batcher[entry] {
	return s.senderTo(destination{topic: arn}, maxPublished, func(es []entry) ([]error, []int) {
		return s.publishOnce(arn, es)
	})
}

// senderTo returns a batcher that calls once with its entries, and then with each of those again by
// itself that once returns the index of.
func (s *sender) senderTo(
	to destination, maxSize int, once func([]entry) (errs []error, again []int),
) *batch.Batcher[entry] {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b, ok := s.batchers[to]; ok {
		return b
	}
	cfg := batch.Config[entry]{Linger: sendLinger, MaxWeight: maxSize, Weight: func(e entry) int { return e.size() }}
	b := newBatcher(s.account, cfg, func(entries []entry) []error {
		entries = slices.Clone(entries) // requests point to them
		errs, again := once(entries)
		for _, i := range again {
			one, _ := once(entries[i : i+1])
			errs[i] = one[0]
		}
		return errs
	})
	s.batchers[to] = b
	return b
}

// send sends one entry to a queue, with others of the same moment.
func (s *sender) send(ctx context.Context, queue string, e entry) error {
	to, err := s.queueSender(ctx, queue)
	if err != nil {
		return err
	}
	return batchError(to.Do(ctx, e))
}

// sendOnce sends entries to a queue in one request. again has the entries to send once more: see
// sendBatch.
func (s *sender) sendOnce(queue string, entries []entry) (errs []error, again []int) {
	url, err := s.queueURL(s.ctx, queue)
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
	return s.sendBatch(queue, verb, entries, func(ctx context.Context, tried *attempts) (failures, error) {
		out, err := s.queues.SendMessageBatch(ctx, in, tried.ofSQS)
		if hasCode(err, noQueueCodes) {
			s.urls.forget(queue)
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
func (s *sender) sendBatch(
	name, verb string, entries []entry, request func(context.Context, *attempts) (failures, error),
) (errs []error, again []int) {
	ctx, cancel := s.request(s.ctx)
	defer cancel()
	var tried attempts
	var failed failures
	err := s.paced(ctx, name, func() (err error) {
		failed, err = request(ctx, &tried)
		return err
	})
	if err != nil {
		own := tried.outcome(s.fault(err, "%s", verb), err)
		if len(entries) == 1 {
			return []error{s.sized(name, &entries[0], own, err)}, nil
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
		errs[i] = s.sized(name, &entries[i], s.fault(err, "%s", verb), err)
		switch {
		case throttled(err):
			s.sending.note(err)
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

// attempts watches the attempts of one request, which the SDK repeats. The error of the request is
// that of the last attempt, and an earlier one may have been carried out. The zero value is ready.
type attempts struct {
	aws.Retryer      // the request's own
	unanswered  bool // at least one attempt
}

// IsErrorRetryable is called for each failed attempt.
func (a *attempts) IsErrorRetryable(err error) bool {
	a.unanswered = a.unanswered || inconclusive(err)
	return !throttled(err) && a.Retryer.IsErrorRetryable(err) // paced repeats throttled requests
}

func (a *attempts) ofSQS(o *sqs.Options) { a.Retryer, o.Retryer = o.Retryer, a }

func (a *attempts) ofSNS(o *sns.Options) { a.Retryer, o.Retryer = o.Retryer, a }

// outcome adds to own, the error of a request to send that failed with err, whether its messages
// may have been sent.
func (a *attempts) outcome(own, err error) error {
	switch {
	case a.unanswered || unanswered(err):
		return fmt.Errorf("%w: %w", own, transport.ErrOutcomeUnknown)
	case unsent(err):
		return fmt.Errorf("%w: %w", own, transport.ErrUnreachable)
	}
	return own
}

// publishOnce publishes entries to a topic in one request. again has the entries to publish once
// more: see sendBatch.
func (s *sender) publishOnce(arn string, entries []entry) (errs []error, again []int) {
	in := &sns.PublishBatchInput{
		TopicArn: &arn, PublishBatchRequestEntries: make([]snstypes.PublishBatchRequestEntry, len(entries)),
	}
	for i := range entries {
		e := &entries[i]
		attributes := make(map[string]snstypes.MessageAttributeValue, len(e.attributes))
		for _, a := range e.attributes {
			attributes[a.name] = snstypes.MessageAttributeValue{DataType: aws.String(textType), StringValue: &a.value}
		}
		in.PublishBatchRequestEntries[i] = snstypes.PublishBatchRequestEntry{
			Id: idOf(i), Message: &e.body, MessageAttributes: attributes, MessageGroupId: optional(e.group),
		}
	}
	verb := fmt.Sprintf("publish to topic %q", nameOf(arn))
	return s.sendBatch(arn, verb, entries, func(ctx context.Context, tried *attempts) (failed failures, err error) {
		out, err := s.topics.PublishBatch(ctx, in, tried.ofSNS)
		if hasCode(err, noTopicCodes) && s.cfg.MissingTopic == CreateMissingTopic {
			if _, err := s.createTopic(ctx, nameOf(arn)); err != nil {
				return nil, err
			}
			out, err = s.topics.PublishBatch(ctx, in, tried.ofSNS)
		}
		switch {
		case hasCode(err, noTopicCodes) && s.cfg.MissingTopic == IgnoreMissingTopic:
			return nil, nil
		case hasCode(err, noTopicCodes):
			return nil, fmt.Errorf("it does not exist: create it by Install or \"holdfast endpoint create\", or set "+
				"Transport.MissingTopic: %w", transport.ErrNoQueue)
		case err != nil:
			return nil, err
		}
		for _, f := range out.Failed {
			of := types.BatchResultErrorEntry{Id: f.Id, Code: f.Code, Message: f.Message, SenderFault: f.SenderFault}
			failed = append(failed, of)
		}
		return failed, nil
	})
}

// paceStep is the time between two requests after AWS has throttled or denied one.
const paceStep = time.Second

// pace limits requests to one a second from a request that AWS throttled, or denied as a whole,
// until one succeeds. The zero value is ready, and safe for concurrent use.
type pace struct {
	mu   sync.Mutex // guards the fields below
	slow bool
	next time.Time // of the next request, while slow
}

// wait returns when a request may be sent. It fails when ctx ends first.
func (p *pace) wait(ctx context.Context) error {
	p.mu.Lock()
	if !p.slow {
		p.mu.Unlock()
		return nil
	}
	now := time.Now()
	at := p.next
	if at.Before(now) {
		at = now
	}
	if end, ok := ctx.Deadline(); ok && at.After(end) {
		p.mu.Unlock()
		return errPaced
	}
	p.next = at.Add(paceStep)
	p.mu.Unlock()
	if err := backoff.Sleep(ctx, at.Sub(now)); err != nil {
		return errPaced
	}
	return nil
}

// errPaced is the error of a request that was not sent.
var errPaced = fmt.Errorf("AWS throttles or denies the requests, so that they are sent one a second: %w", transport.ErrUnreachable)

// note records the result of a request.
func (p *pace) note(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err == nil:
		p.slow = false
	case throttled(err) || isDenied(err):
		if at := time.Now().Add(paceStep); !p.slow || p.next.Before(at) {
			p.next = at
		}
		p.slow = true
	}
}

// paced sends a request to a queue or topic, and repeats it while AWS throttles it, up to the
// number of tries of other requests. A throttle slows down all sends; a denial only sends to the
// same queue or topic.
func (s *sender) paced(ctx context.Context, name string, request func() error) (err error) {
	for range tries {
		if denied, ok := s.denied.Load(name); ok {
			if err := denied.(*pace).wait(ctx); err != nil { //nolint:errcheck,forcetypeassert // there is nothing else in it
				return err
			}
		}
		if err := s.sending.wait(ctx); err != nil {
			return err
		}
		err = request()
		switch {
		case err == nil:
			s.sending.note(nil)
			s.denied.Delete(name)
		case throttled(err):
			s.sending.note(err)
			continue
		case isDenied(err):
			denied, _ := s.denied.LoadOrStore(name, new(pace)) // one for all requests in flight
			denied.(*pace).note(err)                           //nolint:errcheck,forcetypeassert // as above
		}
		return err
	}
	return err
}

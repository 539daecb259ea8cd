package sqs

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/holdfast-go/holdfast/transport"
)

var _ transport.Inspector = (*conn)(nil)

// inspector is the part of a conn that counts messages.
type inspector struct {
	*account
	withoutHops cache[struct{}] // queues that had no queue for long delays
}

// Inspect implements [transport.Inspector]. SQS's counts are approximate, and some seconds old.
// Without names it inspects all queues with the prefix, by their names at SQS, except delay queues.
func (ins *inspector) Inspect(
	ctx context.Context, queues ...string,
) ([]transport.QueueStats, error) {
	if len(queues) == 0 {
		var err error
		if queues, err = ins.listQueues(ctx); err != nil {
			return nil, err
		}
	}
	stats := make([]transport.QueueStats, 0, len(queues))
	for _, queue := range queues {
		s, err := ins.inspect(ctx, queue)
		if err != nil {
			return nil, err
		}
		if err := ins.addHopping(ctx, &s); err != nil {
			return nil, err
		}
		stats = append(stats, s)
	}
	return stats, nil
}

func (ins *inspector) inspect(ctx context.Context, queue string) (transport.QueueStats, error) {
	const (
		ready     = types.QueueAttributeNameApproximateNumberOfMessages
		unsettled = types.QueueAttributeNameApproximateNumberOfMessagesNotVisible
		delayed   = types.QueueAttributeNameApproximateNumberOfMessagesDelayed
	)
	attributes, err := ins.queueAttributes(ctx, queue, ready, unsettled, delayed)
	if err != nil {
		return transport.QueueStats{}, err
	}
	count := func(name types.QueueAttributeName) int64 {
		n, err := strconv.ParseInt(attributes[string(name)], 10, 64)
		if err != nil {
			return -1
		}
		return n
	}
	return transport.QueueStats{Name: ins.ShortName(queue), Ready: count(ready), Unsettled: count(unsettled), Delayed: count(delayed)}, nil
}

// addHopping adds the messages of the delay queue to the delayed ones.
func (ins *inspector) addHopping(ctx context.Context, s *transport.QueueStats) error {
	if _, ok := ins.withoutHops.get(s.Name); ok {
		return nil
	}
	waits := s.Name + delaySuffix
	if _, err := queueName(ins.cfg.QueuePrefix, waits); err != nil {
		return nil //nolint:nilerr // there cannot be one
	}
	own, err := ins.inspect(ctx, waits)
	if errors.Is(err, transport.ErrNoQueue) || isDenied(err) { // an endpoint that uses it has the right
		ins.withoutHops.set(s.Name, struct{}{})
		return nil
	}
	if err != nil {
		return err
	}
	s.Delayed = max(0, s.Delayed) + max(0, own.Ready) + max(0, own.Unsettled) + max(0, own.Delayed)
	return nil
}

// listQueues returns the names of all standard queues with the prefix, without it.
func (ins *inspector) listQueues(ctx context.Context) (queues []string, err error) {
	if ins.closed() {
		return nil, transport.ErrClosed
	}
	prefix, err := sanitize(ins.cfg.QueuePrefix)
	if err != nil {
		return nil, err
	}
	in := &sqs.ListQueuesInput{QueueNamePrefix: optional(prefix), MaxResults: aws.Int32(1000)}
	for {
		out, err := call(ctx, ins.account, ins.queues.ListQueues, in)
		if err != nil {
			return nil, ins.fault(err, "list queues")
		}
		for _, url := range out.QueueUrls {
			name := url[strings.LastIndexByte(url, '/')+1:]
			if !strings.HasSuffix(name, ".fifo") {
				queues = append(queues, ins.ShortName(name))
			}
		}
		if in.NextToken = out.NextToken; in.NextToken == nil {
			return queues, nil
		}
	}
}

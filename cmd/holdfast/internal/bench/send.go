package bench

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/testbed"
	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/pipeline"
)

// sender returns the configuration of a send-only endpoint: the one that the work send measures, or
// the source of messages at a rate.
func (b *bench) sender() endpoint.Config {
	cfg := b.config(b.prefix + "-sender")
	cfg.SendOnly = true
	cfg.Pipeline.Dispatch.Use("bench", func(next pipeline.Func[*pipeline.Dispatch]) pipeline.Func[*pipeline.Dispatch] {
		return func(ctx context.Context, d *pipeline.Dispatch) error {
			b.timeline.sent(d)
			return next(ctx, d)
		}
	})
	return cfg
}

// sendTo returns a function that sends the i-th message to a queue.
func (b *bench) sendTo(queue string, e *endpoint.Endpoint) func(ctx context.Context, i int) error {
	opts := append([]endpoint.SendOption{endpoint.To(queue)}, b.options(headersOutside)...)
	return func(ctx context.Context, i int) error {
		b.timeline.begin(i)
		return e.Send(ctx, &b.order, append(opts[:len(opts):len(opts)], endpoint.MessageID(messageID(i)))...)
	}
}

// send measures sending: each goroutine sends the next message when its last one has been accepted.
func (b *bench) send(ctx context.Context, group *errgroup.Group) error {
	sender, err := testbed.Launch(ctx, group, b.sender())
	if err != nil {
		return err
	}
	sendOne := b.sendTo(b.out, sender)
	runtime.GC()
	if err := b.meter.start(b.Profile); err != nil {
		return err
	}
	defer b.meter.stop()
	return b.inParallel(ctx, b.Concurrency, func(ctx context.Context, i int) error {
		if err := sendOne(ctx, i); err != nil {
			return err
		}
		b.timeline.stop(i)
		b.timeline.complete(i)
		return nil
	})
}

// sendAtRate sends all messages, evenly spread.
func (b *bench) sendAtRate(ctx context.Context, e *endpoint.Endpoint) error {
	const senders = 64 // so that one which waits for the broker does not delay the next
	start, sendOne := time.Now(), b.sendTo(b.in, e)
	err := b.inParallel(ctx, senders, func(ctx context.Context, i int) error {
		due := start.Add(time.Duration(float64(i) / b.Rate * float64(time.Second)))
		if err := backoff.Sleep(ctx, time.Until(due)); err != nil {
			return err
		}
		return sendOne(ctx, i)
	})
	if ctx.Err() != nil { // the run is over: a redelivered message may have ended it
		return nil
	}
	return err
}

// inParallel calls f for every message, in n goroutines.
func (b *bench) inParallel(ctx context.Context, n int, f func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range n {
		group.Go(func() error {
			for i := int(next.Add(1)) - 1; i < b.Messages; i = int(next.Add(1)) - 1 {
				if err := f(ctx, i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

package bench

import (
	"context"
	"encoding/json"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/pipeline"
)

// sender returns a send-only endpoint: the one that the work send measures, or the source of messages at a rate.
func (b *bench) sender() (*endpoint.Endpoint, error) {
	cfg := b.config(b.prefix + "-sender")
	cfg.SendOnly = true
	cfg.Pipeline.Dispatch.Use("bench", func(next pipeline.Func[*pipeline.Dispatch]) pipeline.Func[*pipeline.Dispatch] {
		return func(ctx context.Context, d *pipeline.Dispatch) error {
			b.timeline.sent(d)
			return next(ctx, d)
		}
	})
	return endpoint.New(cfg)
}

// sendOne sends the i-th message.
func (b *bench) sendOne(ctx context.Context, e *endpoint.Endpoint, o *order, i int, opts []endpoint.SendOption) error {
	b.timeline.begin(i)
	return e.Send(ctx, o, append(opts[:len(opts):len(opts)], endpoint.MessageID(messageID(i)))...)
}

// runSend measures sending: each goroutine sends the next message when its last one has
// been accepted.
func (b *bench) runSend(ctx context.Context) error {
	sender, err := b.sender()
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	group, running := errgroup.WithContext(running)
	group.Go(func() error { return sender.Run(running) })
	if err := sender.WaitReady(running); err != nil {
		return first(group.Wait(), err)
	}
	o, err := b.order()
	if err != nil {
		return err
	}
	opts := append([]endpoint.SendOption{endpoint.To(b.out)}, b.options(headersOutside)...)
	runtime.GC()
	if err := b.meter.start(b.Profile); err != nil {
		return err
	}
	err = b.inParallel(running, b.Concurrency, func(ctx context.Context, i int) error {
		if err := b.sendOne(ctx, sender, o, i, opts); err != nil {
			return err
		}
		b.timeline.stop(i)
		b.timeline.complete(i)
		return nil
	})
	b.meter.stop()
	stop()
	return first(err, group.Wait())
}

// sendAtRate sends all messages, evenly spread.
func (b *bench) sendAtRate(ctx context.Context, e *endpoint.Endpoint) error {
	const senders = 64 // so that one which waits for the broker does not delay the next
	o, err := b.order()
	if err != nil {
		return err
	}
	opts := append([]endpoint.SendOption{endpoint.To(b.in)}, b.options(headersOutside)...)
	start := time.Now()
	err = b.inParallel(ctx, senders, func(ctx context.Context, i int) error {
		due := start.Add(time.Duration(float64(i) / b.Rate * float64(time.Second)))
		if err := backoff.Sleep(ctx, time.Until(due)); err != nil {
			return err
		}
		return b.sendOne(ctx, e, o, i, opts)
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

// order returns the message of b.body.
func (b *bench) order() (*order, error) {
	var o order
	err := json.Unmarshal(b.body, &o)
	return &o, err
}

package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/testbed"
	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport"
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

// orderType is the wire name of every message.
const orderType = "Bench.PlaceOrder"

// Numbers of headers that an endpoint writes: a handler also writes the reply address and the
// related message.
const (
	headersOutside = 10
	headersInside  = 12
)

const extraValue = "6d1f0c9e-7a54-4c0d-9d3e-1b2c3d4e5f60"

// extra returns the names of the headers that are added to own ones, up to b.Headers.
func (b *bench) extra(own int) []string {
	var names []string
	for i := own; i < b.Headers; i++ {
		names = append(names, fmt.Sprintf("Bench.Header-%02d", i+1))
	}
	return names
}

// options returns the options that add the extra headers to messages with own ones.
func (b *bench) options(own int) []endpoint.SendOption {
	var opts []endpoint.SendOption
	for _, name := range b.extra(own) {
		opts = append(opts, endpoint.Header(name, extraValue))
	}
	return opts
}

// incoming returns the i-th message to be received, with the headers of a sending endpoint.
func (b *bench) incoming(i int) transport.Operation {
	id := messageID(i)
	var h header.Map
	h.Reserve(max(headersInside, b.Headers))
	h.Set(header.MessageID, id)
	h.Set(header.CorrelationID, extraValue)
	h.Set(header.ConversationID, extraValue)
	h.Set(header.RelatedTo, extraValue)
	h.Set(header.MessageIntent, header.IntentSend)
	h.Set(header.ReplyToAddress, "sales")
	h.Set(header.OriginatingEndpoint, "sales")
	h.Set(header.OriginatingMachine, "host-01")
	h.Set(header.OriginatingHostID, "9b2f8c1e7a544c0d9d3e1b2c3d4e5f60")
	h.Set(header.TimeSent, "2026-01-02 03:04:05:000000 Z")
	h.Set(header.ContentType, "application/json")
	h.Set(header.EnclosedMessageTypes, orderType)
	for _, name := range b.extra(headersInside) {
		h.Set(name, extraValue)
	}
	return transport.Operation{Message: &transport.Message{ID: id, Headers: h, Body: b.body}, Queue: b.in}
}

// preload sends all messages to the queue, in batches.
func (b *bench) preload(ctx context.Context) error {
	const (
		batch   = 500
		senders = 4
	)
	group, loading := errgroup.WithContext(ctx)
	group.SetLimit(senders)
	for first := 0; first < b.Messages && loading.Err() == nil; first += batch {
		group.Go(func() error {
			ops := make([]transport.Operation, 0, batch)
			for i := first; i < min(first+batch, b.Messages); i++ {
				ops = append(ops, b.incoming(i))
			}
			_, err := b.conn.Dispatch(loading, ops)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("preload %d messages: %w", b.Messages, err)
	}
	return ctx.Err()
}

// order is the body of every message.
type order struct {
	OrderID    string    `json:"orderId"`
	CustomerID string    `json:"customerId"`
	PlacedAt   time.Time `json:"placedAt"`
	Currency   string    `json:"currency"`
	Total      float64   `json:"total"`
	Lines      []line    `json:"lines"`
	Notes      string    `json:"notes,omitempty"`
}

type line struct {
	SKU   string  `json:"sku"`
	Qty   int     `json:"qty"`
	Price float64 `json:"price"`
}

// orderBody returns an order as JSON with as many lines as fit into size bytes.
func orderBody(size int) ([]byte, error) {
	o := order{
		OrderID: "3f2b8c1e-7a54-4c0d-9d3e-1b2c3d4e5f60", CustomerID: "cust-000123",
		PlacedAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Currency: "EUR", Total: 129.95,
		Lines: []line{{"SKU-001", 1, 49.95}},
	}
	body, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	if len(body) > size {
		return nil, fmt.Errorf("a body of %d bytes is too small: an order has at least %d", size, len(body))
	}
	for left := size - len(body); ; {
		next := line{fmt.Sprintf("SKU-%03d", len(o.Lines)+1), len(o.Lines) + 1, 9.95}
		text, err := json.Marshal(next)
		if err != nil {
			return nil, err
		}
		if left -= len(text) + len(","); left < 0 {
			return json.Marshal(o)
		}
		o.Lines = append(o.Lines, next)
	}
}

package bench

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

// orderType is the wire name of every message.
const orderType = "Bench.PlaceOrder"

// How many headers an endpoint writes by itself: within a handler also where replies go
// and which message it is related to.
const (
	headersOutside = 10
	headersInside  = 12
)

const extraValue = "6d1f0c9e-7a54-4c0d-9d3e-1b2c3d4e5f60"

// extra are the names of the headers that bring own up to what was asked for.
func (b *bench) extra(own int) []string {
	var names []string
	for i := own; i < b.Headers; i++ {
		names = append(names, fmt.Sprintf("Bench.Header-%02d", i+1))
	}
	return names
}

// options add the extra headers to the messages of an endpoint that has own of them. They
// are made once.
func (b *bench) options(own int) []endpoint.SendOption {
	var opts []endpoint.SendOption
	for _, name := range b.extra(own) {
		opts = append(opts, endpoint.Header(name, extraValue))
	}
	return opts
}

// incoming is the i-th message to be received, with the headers that a sending endpoint
// would have written.
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

// preload puts all messages into the queue, in batches.
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

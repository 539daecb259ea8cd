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

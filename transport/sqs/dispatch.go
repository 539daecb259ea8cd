package sqs

import (
	"context"

	"github.com/holdfast-go/holdfast/transport"
)

// Dispatch sends.
func (c *conn) Dispatch(_ context.Context, ops []transport.Operation) ([]transport.Receipt, error) {
	return nil, transport.FailAll(len(ops), errUnfinished)
}

// Limits says what SQS takes.
func (c *conn) Limits() transport.Limits { return transport.Limits{Lease: c.cfg.Lease, MaxHold: maxHold} }

// OpenReceiver receives.
func (c *conn) OpenReceiver(context.Context, transport.ReceiverOptions) (transport.Receiver, error) {
	return nil, errUnfinished
}

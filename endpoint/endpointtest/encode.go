package endpointtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// Client is the name of the endpoint that sends Handle's message, and the queue of replies to it.
const Client = "client"

// encode returns m as another endpoint sends it: it runs that endpoint and captures the message.
func encode(ctx context.Context, cfg endpoint.Config, m any, opts []endpoint.SendOption) (*transport.Message, error) {
	caught := catcher{}
	sender := endpoint.Config{
		Name: Client, SendOnly: true, Transport: &inmemory.Transport{},
		Messages: cfg.Messages, Serializers: cfg.Serializers, Logger: cfg.Logger,
	}
	sender.Pipeline.Outgoing.Use("catch", caught.behavior)
	ep, err := endpoint.New(sender)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- ep.Run(ctx) }()
	if ep.WaitReady(ctx) == nil { // it publishes events and sends other messages: only the endpoint knows the kind of m
		if err = ep.Publish(ctx, m, here("", opts)); !caught.reached {
			err = ep.Send(ctx, m, here(Client, opts))
		}
	}
	stop()
	err = errors.Join(err, <-ended)
	if err == nil && caught.message == nil {
		err = fmt.Errorf("%T: %w", m, errUnsent)
	}
	return caught.message, err
}

var errUnsent = errors.New("an option kept the message from being sent")

// catcher captures a message instead of sending it.
type catcher struct {
	reached bool
	message *transport.Message
}

func (c *catcher) behavior(next pipeline.Func[*pipeline.Outgoing]) pipeline.Func[*pipeline.Outgoing] {
	return func(ctx context.Context, out *pipeline.Outgoing) error {
		c.reached = true
		err := next(ctx, out)
		c.message, out.Operation = out.Operation.Message, transport.Operation{}
		return err
	}
}

// here is opts for every verb, without the queue and the time that they may set.
func here(queue string, opts []endpoint.SendOption) endpoint.Option {
	return endpoint.OutgoingOption(func(out *pipeline.Outgoing) {
		out.ReplyTo = Client
		for _, opt := range opts {
			opt.ApplySend(out)
		}
		if errors.Is(out.Err, endpoint.ErrReceiptHeader) { // a message that arrives may have such headers
			out.Err = nil
		}
		out.Queue, out.After, out.At = queue, 0, time.Time{}
	})
}

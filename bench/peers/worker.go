package main

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"
)

// A worker handles the messages of the first queue by hand, on a connection to receive and one to
// send.
type worker struct {
	*run
	receive, send *amqp.Connection
	publishing    *amqp.Channel
	// commit is the transaction of a message. It returns errHandled if the message was handled
	// before.
	commit func(ctx context.Context, id string, o order, out message) error
	// sent is called when the broker has accepted a message of a commit.
	sent func(ctx context.Context, out message) error
}

// errHandled is returned for a message that was handled before.
var errHandled = errors.New("the message was handled before")

// work handles messages until all are done.
func (w *worker) work(ctx context.Context) (err error) {
	if w.receive, err = w.dial(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.receive.Close()) }()
	if w.send, err = w.dial(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.send.Close()) }()
	if w.publishing, err = w.send.Channel(); err != nil {
		return err
	}
	if err := w.publishing.Confirm(false); err != nil {
		return err
	}
	receiving, err := w.receive.Channel()
	if err != nil {
		return err
	}
	if err := receiving.Qos(3*concurrency, 0, false); err != nil {
		return err
	}
	deliveries, err := receiving.ConsumeWithContext(ctx, queueIn, "peer", false, false, false, false, nil)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for range concurrency {
		group.Go(func() error { return w.handleAll(ctx, deliveries) })
	}
	return group.Wait()
}

func (w *worker) handleAll(ctx context.Context, deliveries <-chan amqp.Delivery) error {
	for {
		select {
		case <-w.all:
			return nil
		case <-ctx.Done():
			return w.wait(ctx)
		case d, ok := <-deliveries:
			if !ok {
				return errors.New("RabbitMQ closed the channel")
			}
			if err := w.handle(ctx, d); err != nil {
				return err
			}
		}
	}
}

func (w *worker) handle(ctx context.Context, d amqp.Delivery) error {
	o, err := decode(d.Body)
	if err != nil {
		return err
	}
	out, err := newMessage(o, d.MessageId)
	if err != nil {
		return err
	}
	switch err := w.commit(ctx, d.MessageId, o, out); {
	case errors.Is(err, errHandled):
		return d.Ack(false)
	case err != nil:
		return fmt.Errorf("handle a message: %w", err)
	}
	confirm, err := w.publishing.PublishWithDeferredConfirmWithContext(ctx, "", queueOut, true, false, out.publishing())
	if err != nil {
		return err
	}
	if err := accepted(ctx, confirm); err != nil {
		return err
	}
	if err := w.sent(ctx, out); err != nil {
		return err
	}
	if err := d.Ack(false); err != nil {
		return err
	}
	w.done()
	return nil
}

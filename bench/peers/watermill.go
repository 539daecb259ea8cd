package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	wmessage "github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// outboxTopic is the forwarder's topic: the table "watermill_outbox".
const outboxTopic = "outbox"

// outboxTable is the fastest of Watermill's tables for a forwarder: rows are deleted when they are
// forwarded.
var outboxTable = wsql.PostgreSQLQueueSchema{
	SubscribeBatchSize: 100, GeneratePayloadType: func(string) string { return "BYTEA" },
}

// runWatermill handles messages in a Watermill router. Each handler commits a transaction with its
// business write and, by Watermill's SQL publisher, its message, which Watermill's forwarder sends
// to RabbitMQ.
func runWatermill(ctx context.Context, r *run) (err error) {
	config := wamqp.NewDurableQueueConfig(r.amqp)
	config.Queue.Arguments = quorum
	config.Publish.ConfirmDelivery = true
	config.Publish.ChannelPoolSize = concurrency
	log := watermill.NopLogger{}

	publisher, err := wamqp.NewPublisher(config, log)
	if err != nil {
		return fmt.Errorf("connect Watermill to RabbitMQ: %w", err)
	}
	defer func() { err = errors.Join(err, publisher.Close()) }()
	subscriber, err := wamqp.NewSubscriber(config, log)
	if err != nil {
		return fmt.Errorf("connect Watermill to RabbitMQ: %w", err)
	}
	defer func() { err = errors.Join(err, subscriber.Close()) }()
	outbox, err := wsql.NewSubscriber(wsql.BeginnerFromPgx(r.pool), wsql.SubscriberConfig{
		SchemaAdapter: outboxTable, OffsetsAdapter: wsql.PostgreSQLQueueOffsetsAdapter{DeleteOnAck: true}, InitializeSchema: true,
		PollInterval: 10 * time.Millisecond, RetryInterval: 10 * time.Millisecond, ResendInterval: 10 * time.Millisecond,
	}, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, outbox.Close()) }()
	if err := outbox.SubscribeInitialize(outboxTopic); err != nil {
		return err
	}
	forward, err := forwarder.NewForwarder(outbox, &forwarded{publisher, r.meter}, log, forwarder.Config{ForwarderTopic: outboxTopic})
	if err != nil {
		return err
	}
	router, err := wmessage.NewRouter(wmessage.RouterConfig{}, log)
	if err != nil {
		return err
	}
	for i := range concurrency { // a handler of Watermill takes one message at a time
		router.AddConsumerHandler(fmt.Sprintf("handler-%d", i), queueIn, subscriber, r.handleWatermill)
	}

	group, working := errgroup.WithContext(ctx)
	group.Go(func() error { return forward.Run(working) })
	group.Go(func() error { return router.Run(working) })
	err = r.wait(working)
	if err == nil { // Watermill must not close while rows are being deleted
		err = errors.Join(r.expectSent(ctx, r.total), r.expectCharges(ctx, r.total),
			r.expectRows(ctx, "rows in the outbox", 0, `SELECT count(*) FROM watermill_outbox`))
	}
	return errors.Join(err, router.Close(), forward.Close(), group.Wait())
}

func (r *run) handleWatermill(in *wmessage.Message) error {
	o, err := decode(in.Payload)
	if err != nil {
		return err
	}
	sent, err := newMessage(o, in.UUID)
	if err != nil {
		return err
	}
	out := wmessage.NewMessage(sent.id, sent.body)
	for name, value := range sent.headers {
		if name != watermillID {
			out.Metadata[name] = value
		}
	}
	return pgx.BeginFunc(in.Context(), r.pool, func(tx pgx.Tx) error {
		if err := charge(in.Context(), tx, o); err != nil {
			return err
		}
		rows, err := wsql.NewPublisher(wsql.TxFromPgx(tx), wsql.PublisherConfig{SchemaAdapter: outboxTable}, watermill.NopLogger{})
		if err != nil {
			return err
		}
		return forwarder.NewPublisher(rows, forwarder.PublisherConfig{ForwarderTopic: outboxTopic}).Publish(queueOut, out)
	})
}

// forwarded counts the messages that the forwarder has sent.
type forwarded struct {
	wmessage.Publisher
	meter *meter
}

func (f *forwarded) Publish(topic string, messages ...*wmessage.Message) error {
	if err := f.Publisher.Publish(topic, messages...); err != nil {
		return err
	}
	for range messages {
		f.meter.done()
	}
	return nil
}

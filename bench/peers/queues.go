package main

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

// A run receives from queueIn and sends to queueOut. Both queues are deleted and created at the begin
// of a run, and deleted at the end.
const (
	queueIn  = "holdfast-bench-peers.in"
	queueOut = "holdfast-bench-peers.out"
)

// quorum are the arguments of the queues.
var quorum = amqp.Table{"x-queue-type": "quorum"}

// queues are the queues of a run.
type queues struct {
	servers
	conn *amqp.Connection
	ch   *amqp.Channel
}

// openQueues creates the queues and sends n messages to the first one.
func openQueues(ctx context.Context, s servers, n int) (*queues, error) {
	conn, err := s.dial()
	if err != nil {
		return nil, err
	}
	q := &queues{servers: s, conn: conn}
	if err := q.fill(ctx, n); err != nil {
		return nil, errors.Join(fmt.Errorf("fill the queue: %w", err), conn.Close())
	}
	return q, nil
}

func (q *queues) fill(ctx context.Context, n int) (err error) {
	if q.ch, err = q.conn.Channel(); err != nil {
		return err
	}
	for _, name := range []string{queueIn, queueOut} {
		if _, err := q.ch.QueueDelete(name, false, false, false); err != nil {
			return err
		}
		if _, err := q.ch.QueueDeclare(name, true, false, false, false, quorum); err != nil {
			return err
		}
	}
	if err := q.ch.Confirm(false); err != nil {
		return err
	}
	const window = 500
	confirms := make([]*amqp.DeferredConfirmation, 0, n)
	for i := range n {
		m, err := first(i)
		if err != nil {
			return err
		}
		c, err := q.ch.PublishWithDeferredConfirmWithContext(ctx, "", queueIn, true, false, m.publishing())
		if err != nil {
			return err
		}
		if confirms = append(confirms, c); i >= window {
			if err := accepted(ctx, confirms[i-window]); err != nil {
				return err
			}
		}
	}
	for _, c := range confirms[max(0, n-window):] {
		if err := accepted(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// publishing returns the message for RabbitMQ.
func (m *message) publishing() amqp.Publishing {
	headers := make(amqp.Table, len(m.headers))
	for name, value := range m.headers {
		headers[name] = value
	}
	return amqp.Publishing{
		MessageId: m.id, DeliveryMode: amqp.Persistent, ContentType: "application/json", Headers: headers, Body: m.body,
	}
}

// accepted waits for the broker's confirm.
func accepted(ctx context.Context, c *amqp.DeferredConfirmation) error {
	ok, err := c.WaitContext(ctx)
	if err == nil && !ok {
		err = errors.New("RabbitMQ refused a message")
	}
	return err
}

// expectSent fails unless the second queue gets want messages, and the first one is empty.
func (q *queues) expectSent(ctx context.Context, want int) error {
	for name, n := range map[string]int{queueIn: 0, queueOut: want} {
		err := expect(ctx, "messages in "+name, int64(n), func() (int64, error) {
			state, err := q.ch.QueueDeclarePassive(name, true, false, false, false, quorum)
			return int64(state.Messages), err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (q *queues) close() error {
	for _, name := range []string{queueIn, queueOut} {
		if _, err := q.ch.QueueDelete(name, false, false, false); err != nil {
			return errors.Join(fmt.Errorf("delete queue %s: %w", name, err), q.conn.Close())
		}
	}
	return q.conn.Close()
}

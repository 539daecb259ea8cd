package brokertest_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

func TestRabbitMQSeparatesTests(t *testing.T) {
	name := brokertest.Name(t, "orders")
	mine, other := brokertest.RabbitMQ(t), brokertest.RabbitMQ(t)
	fill(t, mine, name, 0)
	if n := fill(t, other, name, 0); mine != other && n != 0 {
		t.Errorf("the queue of another test shows %d messages", n)
	}
}

// fill puts a message into a durable queue and returns how many the queue had. A node that starts
// may count messages before it has read them: fill looks for as long as there are fewer than least.
func fill(t *testing.T, url, queue string, least int) int {
	t.Helper()
	c, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ch, err := c.Channel()
	if err != nil {
		t.Fatal(err)
	}
	var q amqp.Queue
	for deadline := time.Now().Add(time.Minute); ; {
		if q, err = ch.QueueDeclare(queue, true, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
		if q.Messages >= least || time.Now().After(deadline) {
			break
		}
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	m := amqp.Publishing{DeliveryMode: amqp.Persistent}
	confirm, err := ch.PublishWithDeferredConfirm("", queue, false, false, m)
	if err != nil {
		t.Fatal(err)
	}
	if !confirm.Wait() {
		t.Fatal("the message was not accepted")
	}
	return q.Messages
}

func TestPostgresSeparatesTests(t *testing.T) {
	for range 2 {
		ctx := context.Background()
		c, err := pgx.Connect(ctx, brokertest.Postgres(t))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Exec(ctx, "CREATE TABLE orders (id int)"); err != nil {
			t.Errorf("the virtual host is not empty: %v", err)
		}
		if err := c.Close(ctx); err != nil {
			t.Error(err)
		}
	}
}

func TestNamesDoNotRepeat(t *testing.T) {
	if a, b := brokertest.Name(t, "orders"), brokertest.Name(t, "orders"); a == b {
		t.Errorf("both are called %s", a)
	}
}

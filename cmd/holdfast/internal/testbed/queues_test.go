package testbed

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

func TestRemovingGoesOnAfterALostConnection(t *testing.T) {
	broker := brokertest.RabbitMQ(t)
	conn, err := amqp.Dial(broker)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	declare := func(name string) error {
		ch, err := conn.Channel()
		if err == nil {
			_, err = ch.QueueDeclare(name, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
		}
		if err == nil {
			err = ch.ExchangeDeclare(name, amqp.ExchangeFanout, true, false, false, false, nil)
		}
		return err
	}
	queues := []string{"bench-in", "bench-out", "bench-error"}
	for _, q := range queues {
		if err := declare(q); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	u, err := url.Parse(broker)
	if err != nil {
		t.Fatal(err)
	}
	proxy := brokertest.NewProxy(t, u.Host)
	c := open(t, proxy.URL(t, broker))
	proxy.CutAt("bench-out", 1)
	if err := Remove(ctx, c, queues...); err != nil {
		t.Fatal(err)
	}
	for _, q := range queues {
		ch, err := conn.Channel()
		if err == nil {
			_, err = ch.QueueDeclarePassive(q, true, false, false, false, nil)
		}
		if err == nil || !strings.Contains(err.Error(), "NOT_FOUND") {
			t.Errorf("%s: %v", q, err)
		}
	}
}

func open(t *testing.T, url string) transport.Conn {
	t.Helper()
	c, err := (&rabbitmq.Transport{URL: url}).Open(t.Context(), transport.Env{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// unable is a Conn that cannot delete queues at the moment.
type unable struct{ transport.Conn }

func (unable) Remove(context.Context, ...string) error { return errors.New("connection refused") }

func TestWhatIsLeftBehindIsSaid(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	err := Remove(ctx, unable{}, "bench-in", "bench-out")
	if err == nil || !strings.Contains(err.Error(), `["bench-in" "bench-out"]`) || !strings.Contains(err.Error(), "refused") {
		t.Errorf("remove: %v", err)
	}
}

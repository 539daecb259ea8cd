package baddays_test

import (
	"context"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

// rawPublisher sends messages as a program does that is no endpoint.
type rawPublisher struct {
	t       *testing.T
	ch      *amqp.Channel
	pending []*amqp.DeferredConfirmation
}

func newRawPublisher(t *testing.T, url string) *rawPublisher {
	t.Helper()
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // with the broker's node it may be gone
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	return &rawPublisher{t: t, ch: ch}
}

// publish sends to a queue. The broker's answer is waited for by wait, or after 500 messages.
func (p *rawPublisher) publish(queue string, m amqp.Publishing) {
	p.t.Helper()
	m.DeliveryMode = amqp.Persistent
	c, err := p.ch.PublishWithDeferredConfirm("", queue, true, false, m)
	if err != nil {
		p.t.Fatal(err)
	}
	if p.pending = append(p.pending, c); len(p.pending) == 500 {
		p.wait()
	}
}

func (p *rawPublisher) wait() {
	p.t.Helper()
	for _, c := range p.pending {
		if !c.Wait() {
			p.t.Fatal("the broker did not take a message")
		}
	}
	p.pending = nil
}

// awaitReady waits until a queue holds so many ready messages.
func awaitReady(ctx context.Context, t *testing.T, conn transport.Conn, queue string, want int) {
	t.Helper()
	pause := backoff.Backoff{Min: 10 * time.Millisecond, Max: 200 * time.Millisecond}
	for {
		stats, err := conn.(transport.Inspector).Inspect(ctx, queue)
		if err == nil && stats[0].Ready == int64(want) {
			return
		}
		if pause.Wait(ctx) != nil {
			t.Fatalf("queue %q: %+v, %v; want %d ready messages", queue, stats, err, want)
		}
	}
}

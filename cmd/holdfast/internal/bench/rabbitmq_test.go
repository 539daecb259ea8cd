package bench

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

// endingAt is the URL of a way to the broker that ends when the text goes over it for the first time.
func endingAt(t *testing.T, broker, text string) string {
	t.Helper()
	u, err := url.Parse(broker)
	if err != nil {
		t.Fatal(err)
	}
	way, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = way.Close() })
	server := u.Host
	pass := func(from net.Conn, ends bool) {
		defer from.Close()
		to, err := net.Dial("tcp", server)
		if err != nil {
			return
		}
		defer to.Close()
		go func() { _, _ = io.Copy(from, to) }()
		buf := make([]byte, 64<<10)
		for {
			n, err := from.Read(buf)
			if err != nil || ends && bytes.Contains(buf[:n], []byte(text)) {
				return
			}
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
	}
	go func() {
		for ends := true; ; ends = false {
			from, err := way.Accept()
			if err != nil {
				return
			}
			go pass(from, ends)
		}
	}()
	u.Host = way.Addr().String()
	return u.String()
}

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
	if err := RabbitMQ(endingAt(t, broker, "bench-out")).Remove(ctx, "bench", queues); err != nil {
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

func TestWhatIsLeftBehindIsSaid(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	err := RabbitMQ("amqp://127.0.0.1:1").Remove(ctx, "bench", []string{"bench-in", "bench-out"})
	if err == nil || !strings.Contains(err.Error(), `["bench-in" "bench-out"]`) || !strings.Contains(err.Error(), "refused") {
		t.Errorf("remove: %v", err)
	}
}

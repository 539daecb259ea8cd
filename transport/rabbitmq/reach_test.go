package rabbitmq_test

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
)

func TestWhoHandlesSlowlyIsSentAheadAQuarterOfTheWindow(t *testing.T) {
	onBothTypes(t, func(t *testing.T, _ string, c transport.Conn, queue string) {
		const n, window, handled, slots = 300, 200, 30, 10
		fill(t, c, queue, n)
		r := receive(t, c, queue, window)
		held := nextN(t, r, slots)
		waitForReady(t, c, queue, n-window/4)
		for range handled {
			must(t, held[0].Complete(t.Context()))
			held = append(held[1:], next(t, r))
		}
		waitForReady(t, c, queue, n-window/4-handled)
		held = append(held, r.(transport.Drainer).Drain(within(t), n)...)
		if len(held) != window/4 {
			t.Errorf("%d deliveries are out, want %d", len(held), window/4)
		}
		for _, d := range held {
			must(t, d.Complete(t.Context()))
		}
	})
}

func TestWhoRunsShortIsSentTheWholeWindow(t *testing.T) {
	onBothTypes(t, func(t *testing.T, url string, c transport.Conn, queue string) {
		const n, window = 500, 200
		fill(t, c, queue, n)
		r := receive(t, c, queue, window)
		held := nextN(t, r, window)
		nothing(t, r)
		waitForReady(t, c, queue, n-window)
		r.Window(2 * window) // what is used so far stays so
		held = append(held, nextN(t, r, window)...)
		nothing(t, r)
		for range n {
			if len(held) == 0 {
				held = nextN(t, r, 1)
			}
			if held[0].Attempt().N != 1 {
				t.Errorf("%s is handed out for the %d. time", held[0].Message().ID, held[0].Attempt().N)
			}
			must(t, held[0].Complete(t.Context()))
			held = held[1:]
		}
		waitEmpty(t, c, url, queue)
	})
}

func TestASingleActiveConsumerHasTheFirstShareAlone(t *testing.T) {
	url := brokertest.RabbitMQ(t)
	direct, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	defer direct.Close()
	ch, err := direct.Channel()
	if err != nil {
		t.Fatal(err)
	}
	queue := brokertest.Name(t, "orders")
	args := amqp.Table{"x-queue-type": "quorum", "x-single-active-consumer": true}
	if _, err := ch.QueueDeclare(queue, true, false, false, false, args); err != nil {
		t.Fatal(err)
	}
	const n, window = 300, 200
	c := open(t, url, nil)
	fill(t, c, queue, n)
	r := receive(t, c, queue, window)
	held := nextN(t, r, window/4)
	nothing(t, r)
	for range n - window/4 { // and goes on with that
		must(t, held[0].Complete(t.Context()))
		held = append(held[1:], next(t, r))
	}
}

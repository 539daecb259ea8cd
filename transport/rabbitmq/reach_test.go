package rabbitmq_test

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

func TestWhoHandlesSlowlyIsSentAheadAQuarterOfTheWindow(t *testing.T) {
	for _, queueType := range []rabbitmq.QueueType{rabbitmq.Quorum, rabbitmq.Classic} {
		t.Run(string(queueType), func(t *testing.T) {
			url := brokertest.RabbitMQ(t)
			c := open(t, url, func(tr *rabbitmq.Transport) { tr.QueueType = queueType })
			queue := install(t, c, "orders")
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
}

func TestWhoRunsShortIsSentTheWholeWindow(t *testing.T) {
	for _, queueType := range []rabbitmq.QueueType{rabbitmq.Quorum, rabbitmq.Classic} {
		t.Run(string(queueType), func(t *testing.T) {
			url := brokertest.RabbitMQ(t)
			c := open(t, url, func(tr *rabbitmq.Transport) { tr.QueueType = queueType })
			queue := install(t, c, "orders")
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
}

package rabbitmq_test

import (
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

func TestSlowHandlersHaveAQuarterOfTheWindowPrefetched(t *testing.T) {
	t.Parallel()
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

func TestFastHandlersHaveTheWholeWindowPrefetched(t *testing.T) {
	t.Parallel()
	onBothTypes(t, func(t *testing.T, url string, c transport.Conn, queue string) {
		const n, window = 500, 200
		fill(t, c, queue, n)
		r := receive(t, c, queue, window)
		held := nextN(t, r, window)
		nothing(t, r)
		waitForReady(t, c, queue, n-window)
		r.Window(2 * window) // the first deliveries stay unsettled
		held = append(held, nextN(t, r, window)...)
		nothing(t, r)
		for range n {
			if len(held) == 0 {
				held = nextN(t, r, 1)
			}
			if held[0].Attempt().N != 1 {
				t.Errorf("%s has attempt %d, want 1", held[0].Message().ID, held[0].Attempt().N)
			}
			must(t, held[0].Complete(t.Context()))
			held = held[1:]
		}
		waitEmpty(t, c, url, queue)
	})
}

func TestASingleActiveConsumerHasTheFirstShareAlone(t *testing.T) {
	t.Parallel()
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
	for range n - window/4 { // and so on
		must(t, held[0].Complete(t.Context()))
		held = append(held[1:], next(t, r))
	}
}

func TestExcessOfASmallerWindowIsReleasedInTime(t *testing.T) {
	t.Parallel()
	for _, kind := range []rabbitmq.QueueType{rabbitmq.Quorum, rabbitmq.Classic} {
		t.Run(string(kind), func(t *testing.T) {
			url := brokertest.RabbitMQ(t)
			// The driver waits for deliveries on their way for a tenth of the time-out only. On a
			// busy machine they are later, and are delivered twice.
			brokertest.Longer(t, time.Second, func(timeout time.Duration) error { return excessIsReleased(t, url, kind, timeout) })
		})
	}
}

func excessIsReleased(t *testing.T, url string, kind rabbitmq.QueueType, timeout time.Duration) error {
	c := open(t, url, func(tr *rabbitmq.Transport) { tr.QueueType, tr.ConsumerTimeout = kind, timeout })
	queue := install(t, c, "orders-"+timeout.String())
	const n, window, out = 40, 30, 5
	fill(t, c, queue, n)
	r := receive(t, c, queue, window)
	held := nextN(t, r, out)
	waitForReady(t, c, queue, n-window)
	r.Window(out + 2)
	waitForReady(t, c, queue, n-out-2) // before anything is settled
	for _, d := range append(held, nextN(t, r, 2)...) {
		if d.Attempt().N != 1 {
			return fmt.Errorf("%s was in the window and has attempt %d, want 1", d.Message().ID, d.Attempt().N)
		}
		must(t, d.Complete(t.Context()))
	}
	return nil
}

// Before RabbitMQ 4.3 each release counts.
func TestAWindowThatIsSmallForAMomentCostsNoAttempts(t *testing.T) {
	t.Parallel()
	url := brokertest.RabbitMQ(t)
	c := open(t, url, nil)
	queue := install(t, c, "orders")
	const n = 30
	fill(t, c, queue, n)
	r := receive(t, c, queue, n)
	held := nextN(t, r, 5)
	waitForReady(t, c, queue, 0)
	r.Window(1)
	nothing(t, r)
	r.Window(n)
	for _, d := range append(held, nextN(t, r, n-5)...) {
		if d.Attempt() != (transport.Attempt{N: 1, Exact: true}) {
			t.Errorf("%s has attempt %+v", d.Message().ID, d.Attempt())
		}
		must(t, d.Complete(t.Context()))
	}
	waitEmpty(t, c, url, queue)
}

package rabbitmq_test

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

func TestWhatWasSentAheadOfASmallerWindowGoesBackInTime(t *testing.T) {
	for _, kind := range []rabbitmq.QueueType{rabbitmq.Quorum, rabbitmq.Classic} {
		t.Run(string(kind), func(t *testing.T) {
			url := brokertest.RabbitMQ(t)
			c := open(t, url, func(tr *rabbitmq.Transport) { tr.QueueType, tr.ConsumerTimeout = kind, time.Second })
			queue := install(t, c, "orders")
			const n, window, out = 40, 30, 5
			fill(t, c, queue, n)
			r := receive(t, c, queue, window)
			held := nextN(t, r, out)
			waitForReady(t, c, queue, n-window)
			r.Window(out + 2)
			waitForReady(t, c, queue, n-out-2) // before anything is settled

			other := open(t, url, nil)
			elsewhere := receive(t, other, queue, n)
			for _, d := range nextN(t, elsewhere, n-out-2) {
				must(t, d.Complete(t.Context()))
			}
			for _, d := range append(held, nextN(t, r, 2)...) { // what fits in was not handed out in vain
				if d.Attempt().N != 1 {
					t.Errorf("%s is handed out for the %d. time", d.Message().ID, d.Attempt().N)
				}
				must(t, d.Complete(t.Context()))
			}
			must(t, other.Close())
			waitEmpty(t, c, url, queue)
		})
	}
}

// Until RabbitMQ 4.3 what is given back has been handed out once more.
func TestAWindowThatIsSmallForAMomentCostsNoAttempts(t *testing.T) {
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

package rabbitmq_test

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/holdfast-go/holdfast/transport"
)

// TestCloseKeepsSettlements completes messages in any order, so that most have an acknowledgement
// of their own, and closes at once. A quorum queue delivered most of them again, because RabbitMQ
// forgets settlements that a closed channel holds back.
func TestCloseKeepsSettlements(t *testing.T) {
	t.Parallel()
	onBothTypes(t, func(t *testing.T, url string, _ transport.Conn, queue string) {
		for name, closed := range map[string]func(c transport.Conn, r transport.Receiver, slow []transport.Delivery){
			"connection": func(c transport.Conn, _ transport.Receiver, _ []transport.Delivery) { must(t, c.Close()) },
			"receiver": func(c transport.Conn, r transport.Receiver, slow []transport.Delivery) {
				must(t, r.Close())
				for _, d := range slow {
					must(t, d.Complete(t.Context()))
				}
				must(t, c.Close())
			},
		} {
			t.Run(name, func(t *testing.T) {
				const messages = 200
				c := open(t, url, nil)
				for n := range messages {
					must(t, dispatch(c, send1(queue, message(strconv.Itoa(n), "x"))))
				}
				r := receive(t, c, queue, messages)
				ds := nextN(t, r, messages)
				var slow []transport.Delivery
				for _, i := range rand.Perm(messages) {
					if i%90 == 0 {
						slow = append(slow, ds[i])
						continue
					}
					must(t, ds[i].Complete(t.Context()))
				}
				closed(c, r, slow)

				var want []string
				if name == "connection" {
					want = []string{"0", "180", "90"}
				}
				if got := rest(t, url, queue); !slices.Equal(got, want) {
					t.Errorf("%d messages came again, want %d: %q", len(got), len(want), got)
				}
			})
		}
	})
}

// rest empties a queue and returns the ids of its messages, in order.
func rest(t *testing.T, url, queue string) (ids []string) {
	t.Helper()
	c := open(t, url, nil)
	must(t, dispatch(c, send1(queue, message("the end", "x"))))
	r := receive(t, c, queue, 1000)
	for {
		for _, d := range nextN(t, r, 1) {
			must(t, d.Complete(t.Context()))
			if d.Message().ID == "the end" {
				slices.Sort(ids)
				return ids
			}
			ids = append(ids, d.Message().ID)
		}
	}
}

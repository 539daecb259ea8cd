package rabbitmq_test

import (
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

func TestRemovedQueuesAndTheirPartsAreGone(t *testing.T) {
	t.Parallel()
	for name, change := range topologies {
		t.Run(name, func(t *testing.T) {
			tr := &rabbitmq.Transport{URL: brokertest.RabbitMQ(t)}
			if change != nil {
				change(tr)
			}
			c, err := tr.Open(within(t), transport.Env{Endpoint: "sales"})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			own := transport.Plan{Queues: []transport.Queue{{Name: "sales"}, {Name: "sales.quarantine", Counted: true}}}
			shared := transport.Plan{
				Queues: []transport.Queue{{Name: "error", Shared: true}},
				Types:  [][]string{{"Shop.Placed"}},
				Delays: true,
			}
			all := transport.Plan{Queues: slices.Concat(own.Queues, shared.Queues), Types: shared.Types, Delays: true}
			before := verify(t, c, all)
			must(t, c.(transport.Installer).Install(within(t), all))
			must(t, c.(transport.Subscriber).Subscribe(within(t), "sales", []string{"Shop.Placed"}))
			later := send1("sales", message("later", "x"))
			later.After = time.Second
			must(t, dispatch(c, later))

			remover := c.(transport.Remover)
			must(t, remover.Remove(within(t), "sales", "sales.quarantine"))
			must(t, remover.Remove(within(t), "sales", "sales.quarantine", "sales.never-there"))
			if found := verify(t, c, shared); len(found) != 0 {
				t.Errorf("parts that others use are gone: %+v", found)
			}
			// Everything that is missing was missing before Install, and is a part of the two
			// queues.
			gone := verify(t, c, all)
			want := 2 + 1 + 2 // queues, dead letters, relays
			if name == "conventional" {
				want += 2 // exchanges
			}
			if len(gone) != want {
				t.Errorf("%d parts are gone, want %d: %+v", len(gone), want, gone)
			}
			for _, f := range gone {
				if f.State != transport.Missing || !slices.Contains(before, f) {
					t.Errorf("found %+v", f)
				}
			}
			must(t, dispatch(c, publish1(message("unheard", "x"), "Shop.Placed")))
			waitForReady(t, c, rabbitmq.LostQueue, 1)
		})
	}
}

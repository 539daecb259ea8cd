package rabbitmq_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

// Of several concurrent senders some publish to an exchange that the user has no right to write to.
func TestARefusedExchangeFailsOnlyItsOwnMessages(t *testing.T) {
	t.Parallel()
	node := rabbitmq.OwnNode(t)
	for name, topology := range topologies {
		t.Run(name, func(t *testing.T) {
			admin := open(t, node.URL, topology)
			queue := install(t, admin, "orders")
			must(t, admin.(transport.Installer).Install(within(t), transport.Plan{Types: [][]string{{"Shop.Secret"}}}))
			c := open(t, limited(t, node, "^$", `^(amq\.default|holdfast.*)$`, ".*"), topology)

			const senders, each = 10, 100
			var refused, sent atomic.Int32
			var all sync.WaitGroup
			for s := range senders {
				all.Go(func() {
					for i := range each {
						if i%20 == s%20 {
							err := dispatch(c, publish1(message("secret", "x"), "Shop.Secret"))
							if err == nil || errors.Is(err, transport.ErrOutcomeUnknown) || !strings.Contains(err.Error(), "ACCESS_REFUSED") {
								t.Errorf("the refused one: %v", err)
							}
							refused.Add(1)
							continue
						}
						must(t, dispatch(c, send1(queue, message(fmt.Sprint(s, "-", i), "x"))))
						sent.Add(1)
					}
				})
			}
			all.Wait()
			if refused.Load() == 0 || sent.Load() != senders*each-refused.Load() {
				t.Fatalf("%d refused, %d sent", refused.Load(), sent.Load())
			}
			times := map[string]int{}
			r := receive(t, admin, queue, 100)
			for range sent.Load() {
				d := next(t, r)
				times[d.Message().ID]++
				must(t, d.Complete(t.Context()))
			}
			nothing(t, r)
			for id, n := range times {
				if n != 1 {
					t.Errorf("message %s was sent %d times", id, n)
				}
			}
		})
	}
}

// The broker is asked again some seconds after a refusal.
func TestARefusalIsForgotten(t *testing.T) {
	t.Parallel()
	node := rabbitmq.OwnNode(t)
	admin := open(t, node.URL, nil)
	must(t, admin.(transport.Installer).Install(within(t), transport.Plan{Types: [][]string{{"Shop.Known"}}}))
	c := open(t, limited(t, node, "^$", ".*", ".*"), nil)
	event := publish1(message("a", "x"), "Shop.Late")
	if err := dispatch(c, event); err == nil {
		t.Fatal("there is no exchange")
	}
	must(t, admin.(transport.Installer).Install(within(t), transport.Plan{Types: [][]string{{"Shop.Late"}}}))
	must(t, dispatch(c, publish1(message("b", "x"), "Shop.Known"))) // others go on
	for ctx := within(t); ; {
		err := dispatch(c, event)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}

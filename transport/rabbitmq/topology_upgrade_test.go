package rabbitmq_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
)

// Events of a nested type cross between NServiceBus, older versions and this one on a broker, each
// once.
func TestNestedTypesCrossOnABroker(t *testing.T) {
	t.Parallel()
	const name, present, former = "Shop.Orders+Placed", "Shop:Placed", "Shop:Orders+Placed"
	url := brokertest.RabbitMQ(t)
	raw := confirming(t, url)
	for queue, exchange := range map[string]string{"old": former, "upgraded": former, "net": present} {
		_, err := raw.QueueDeclare(queue, true, false, false, false, map[string]any{"x-queue-type": "quorum"})
		must(t, err)
		for _, x := range []string{queue, exchange} {
			must(t, raw.ExchangeDeclare(x, "fanout", true, false, false, false, nil))
		}
		must(t, raw.QueueBind(queue, "", queue, false, nil))
		must(t, raw.ExchangeBind(queue, "", exchange, false, nil))
	}
	c := open(t, url, nil)
	plan := transport.Plan{
		Queues: []transport.Queue{{Name: "new"}, {Name: "error", Shared: true}}, Types: [][]string{{name}}, Delays: true,
	}
	must(t, c.(transport.Installer).Install(within(t), plan))
	must(t, c.(transport.Installer).Install(within(t), plan))
	if found := verify(t, c, plan); len(found) > 0 {
		t.Errorf("Verify: %+v", found)
	}
	s := c.(transport.Subscriber)
	for _, queue := range []string{"new", "upgraded"} {
		must(t, s.Subscribe(within(t), queue, []string{name}))
	}
	for i := range 5 {
		publishRaw(t, raw, former, "", dotnet(fmt.Sprint("former-", i), name, nil))
		publishRaw(t, raw, present, "", dotnet(fmt.Sprint("present-", i), name, nil))
		op := publish1(message(fmt.Sprint("ours-", i), "x"), name)
		must(t, dispatch(c, op))
		op.Message, op.After = message(fmt.Sprint("late-", i), "x"), time.Second
		must(t, dispatch(c, op))
	}
	for _, queue := range []string{"old", "upgraded", "net", "new"} {
		r := receive(t, c, queue, 20)
		seen := map[string]int{}
		for _, d := range nextN(t, r, 20) {
			seen[d.Message().ID]++
			must(t, d.Complete(t.Context()))
		}
		if nothing(t, r); len(seen) != 20 {
			t.Errorf("%s: received %v", queue, seen)
		}
		must(t, r.Close())
	}
	must(t, s.Unsubscribe(within(t), "upgraded", []string{name}))
	publishRaw(t, raw, former, "", dotnet("after", name, nil))
	must(t, dispatch(c, publish1(message("after", "x"), name)))
	nothing(t, receive(t, c, "upgraded", 20))
}

// The events of a type with the name of a queue do not reach that queue.
func TestATypeAndAQueueOfOneName(t *testing.T) {
	t.Parallel()
	c := open(t, brokertest.RabbitMQ(t), nil)
	plan := transport.Plan{Queues: []transport.Queue{{Name: "payment"}, {Name: "billing"}}, Types: [][]string{{"payment"}}}
	must(t, c.(transport.Installer).Install(within(t), plan))
	must(t, c.(transport.Subscriber).Subscribe(within(t), "billing", []string{"payment"}))
	for i := range 10 {
		must(t, dispatch(c, publish1(message(fmt.Sprint("m-", i), "x"), "payment")))
	}
	for _, d := range nextN(t, receive(t, c, "billing", 10), 10) {
		must(t, d.Complete(t.Context()))
	}
	nothing(t, receive(t, c, "payment", 10))
}

package rabbitmq_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

// installNet declares the queues as the installer of NServiceBus.RabbitMQ 10 does, in the
// conventional topology.
func installNet(t *testing.T, url string, queues ...string) error {
	t.Helper()
	ch := rawChannel(t, url)
	must(t, ch.ExchangeDeclare("nsb.v2.delay-delivery", amqp.ExchangeTopic, true, false, false, false, nil))
	for _, name := range queues {
		if _, err := ch.QueueDeclare(name, true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
			return err
		}
		must(t, ch.ExchangeDeclare(name, amqp.ExchangeFanout, true, false, false, false, nil))
		must(t, ch.QueueBind(name, "", name, false, nil))
		must(t, ch.QueueBind(name, "#."+name, "nsb.v2.delay-delivery", false, nil))
	}
	return nil
}

// takenOver is the plan of an endpoint in a system with NServiceBus.
var takenOver = transport.Plan{
	Queues: []transport.Queue{{Name: "test"}, {Name: "test.quarantine", Counted: true}, {Name: "error", Shared: true}},
	Types:  [][]string{{"Shop.OrderPlaced"}}, Delays: true,
}

func TestNServiceBusTakesOverAQueueOfOurs(t *testing.T) {
	t.Parallel()
	url := brokertest.RabbitMQ(t)
	c := open(t, url, deliveryLimit(rabbitmq.None))
	must(t, c.(transport.Installer).Install(within(t), takenOver))
	late := send1("test", message("late", "x"))
	late.After = 3 * time.Second
	must(t, dispatch(c, send1("test", message("waits", "x")), late, send1("error", message("failed", "x"))))
	if err := installNet(t, url, "test", "error"); err != nil {
		t.Fatal(err)
	}
	ch := rawChannel(t, url)
	for _, name := range []string{"test", "error"} {
		if _, err := ch.QueueDeclarePassive(name, true, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
	}
	publishRaw(t, confirming(t, url), "test", "", dotnet("theirs", "Shop.OrderPlaced", nil))
	received, err := ch.ConsumeWithContext(within(t), "test", "", false, false, false, false, nil)
	must(t, err)
	for _, want := range []string{"waits", "theirs", "late"} {
		select {
		case d := <-received:
			if d.MessageId != want {
				t.Errorf("received %q, want %q", d.MessageId, want)
			}
			must(t, d.Ack(false))
		case <-within(t).Done():
			t.Fatalf("%q does not arrive", want)
		}
	}
	if d, ok, err := ch.Get("error", true); !ok || err != nil || d.MessageId != "failed" {
		t.Errorf("error queue: %q, %v", d.MessageId, err)
	}
}

// NServiceBus cannot declare a queue that has a delivery limit. With the limit, the declaration of
// NServiceBus is refused: the setting has to be there when a queue is created.
func TestNServiceBusRejectsALimitedQueue(t *testing.T) {
	t.Parallel()
	url := brokertest.RabbitMQ(t)
	old := open(t, url, nil)
	must(t, old.(transport.Installer).Install(within(t), takenOver))
	must(t, old.(transport.Subscriber).Subscribe(within(t), "test", []string{"Shop.OrderPlaced"}))
	if err := installNet(t, url, "test"); err == nil || !strings.Contains(err.Error(), "PRECONDITION_FAILED") {
		t.Errorf("declared: %v", err)
	}
	if err := installNet(t, url, "error"); err != nil {
		t.Errorf("error queue: %v", err)
	}
	c, logs := openLogged(t, &rabbitmq.Transport{URL: url, DeliveryLimit: rabbitmq.None})
	must(t, c.(transport.Installer).Install(within(t), takenOver))
	if n := strings.Count(logs.String(), "no endpoint of NServiceBus can declare it: delete it while it is empty"); n != 2 {
		t.Errorf("the log says %s", logs)
	}
	found := verify(t, c, takenOver)
	if len(found) != 2 || !slices.ContainsFunc(found, func(f transport.Finding) bool {
		return f.Name == "test" && f.State == transport.Differs && strings.Contains(f.Detail, "x-delivery-limit")
	}) {
		t.Errorf("found %+v", found)
	}
	// The way of docs/transports/rabbitmq.md.
	ch := rawChannel(t, url)
	for _, name := range []string{"test", "test.quarantine"} {
		_, err := ch.QueueDelete(name, false, false, false)
		must(t, err)
	}
	must(t, c.(transport.Installer).Install(within(t), takenOver))
	must(t, dispatch(c, publish1(message("event", "x"), "Shop.OrderPlaced")))
	if got := next(t, receive(t, c, "test", 1)).Message().ID; got != "event" {
		t.Errorf("through the subscription came %q", got)
	}
	if found := verify(t, c, takenOver); len(found) > 0 {
		t.Errorf("created again: %+v", found)
	}
	if err := installNet(t, url, "test", "error"); err != nil {
		t.Error(err)
	}
}

func TestWeTakeOverAQueueOfNServiceBus(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{0, rabbitmq.None} {
		t.Run(fmt.Sprintf("limit %d", limit), func(t *testing.T) {
			url := brokertest.RabbitMQ(t)
			if err := installNet(t, url, "test", "error"); err != nil {
				t.Fatal(err)
			}
			net := confirming(t, url)
			publishRaw(t, net, "test", "", dotnet("waits", "Shop.OrderPlaced", nil))
			publishRaw(t, net, "error", "", dotnet("failed", "Shop.OrderPlaced", nil))
			c, logs := openLogged(t, &rabbitmq.Transport{URL: url, DeliveryLimit: limit})
			must(t, c.(transport.Installer).Install(within(t), takenOver))
			text := logs.String()
			for _, want := range []string{"used as it is", "set DeliveryLimit to None", "test.dead-letters", "with which no endpoint of NServiceBus starts"} {
				if strings.Contains(text, want) != (limit == 0) {
					t.Errorf("%q: the log says %s", want, text)
				}
			}
			r := receive(t, c, "test", 1)
			d := next(t, r)
			must(t, d.Retry(t.Context()))
			if d = next(t, r); d.Message().ID != "waits" || d.Attempt() != (transport.Attempt{N: 2, Exact: true}) {
				t.Errorf("received %q, attempt %+v", d.Message().ID, d.Attempt())
			}
			again := send1("test", d.Message())
			again.After = time.Second
			must(t, dispatch(c, again, publish1(message("event", "x"), "Shop.OrderPlaced")))
			must(t, d.Complete(t.Context()))
			d = next(t, r)
			if d.Message().ID != "waits" {
				t.Errorf("after the delay came %q", d.Message().ID)
			}
			must(t, dispatch(c, send1("error", d.Message())))
			must(t, d.Complete(t.Context()))
			cursor, err := c.(transport.Browser).Browse(within(t), "error")
			must(t, err)
			failed, err := cursor.Next(within(t), 10)
			must(t, err)
			if len(failed) != 2 || failed[0].ID != "failed" || failed[1].ID != "waits" {
				t.Errorf("error queue: %+v", failed)
			}
			must(t, cursor.Close())
			if err := installNet(t, url, "test", "error"); err != nil { // and back
				t.Error(err)
			}
		})
	}
}

package asb_test

import (
	"errors"
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
)

// A queue that NServiceBus's installer has created is used as it is: with the messages that wait in
// it, also those that are scheduled.
func TestAQueueOfNServiceBusIsTakenOver(t *testing.T) {
	t.Parallel()
	ns := brokertest.OwnServiceBusOf(t, brokertest.ServiceBusAzure)
	raw := rawAdmin(t, ns)
	for _, name := range []string{"Net.Sales", "error"} {
		_, err := raw.CreateQueue(within(t), name, &admin.CreateQueueOptions{Properties: &admin.QueueProperties{
			LockDuration: new("PT5M"), MaxDeliveryCount: new(int32(math.MaxInt32)), MaxSizeInMegabytes: new(int32(5120)),
			EnableBatchedOperations: new(true),
		}})
		must(t, err)
	}
	waiting, later := dotnet("waiting", "Shop.Order", nil), dotnet("later", "Shop.Order", nil)
	due := time.Now().Add(2 * time.Second)
	later.ScheduledEnqueueTime = &due
	queue := rawSender(t, ns, "Net.Sales")
	for _, m := range []*azservicebus.Message{waiting, later} {
		must(t, queue.SendMessage(within(t), m, nil))
	}

	c := open(t, on(ns))
	plan := transport.Plan{Queues: []transport.Queue{{Name: "Net.Sales"}, {Name: "error", Shared: true}}, Delays: true}
	must(t, c.(transport.Installer).Install(within(t), plan))
	found, err := c.(transport.Verifier).Verify(within(t), plan)
	if err != nil || len(found) != 0 {
		t.Errorf("found %v, %v", found, err)
	}
	for _, d := range nextN(t, receive(t, c, "Net.Sales"), 2) {
		if d.Message().ID == "later" && time.Now().Before(due) {
			t.Error("the scheduled message is early")
		}
		must(t, d.Complete(within(t)))
	}
	q, err := raw.GetQueue(within(t), "Net.Sales", nil)
	must(t, err)
	if *q.MaxDeliveryCount != math.MaxInt32 {
		t.Errorf("its delivery count was changed to %d", *q.MaxDeliveryCount)
	}
}

// NServiceBus receives from queues that we have created: its installer accepts a queue that exists,
// and its receiver needs no more than peek-lock.
func TestNServiceBusTakesOverAQueueOfOurs(t *testing.T) {
	t.Parallel()
	ns := brokertest.OwnServiceBusOf(t, brokertest.ServiceBusAzure)
	c := open(t, on(ns))
	install(t, c, "sales")
	dispatch(t, c, transport.Operation{Queue: "sales", Message: message("waiting", "1")})
	dispatch(t, c, transport.Operation{Queue: "sales", Message: message("later", "2"), After: time.Second})
	must(t, c.Close())

	_, err := rawAdmin(t, ns).CreateQueue(within(t), "sales", nil)
	if answer, ok := errors.AsType[*azcore.ResponseError](err); !ok || answer.StatusCode != http.StatusConflict {
		t.Errorf("creating it again: %v, want 409, which NServiceBus's installer ignores", err)
	}
	r := rawReceiver(t, ns, "sales")
	ids := map[any]bool{}
	for len(ids) < 2 {
		ms, err := r.ReceiveMessages(within(t), 2, nil)
		must(t, err)
		for _, m := range ms {
			ids[m.ApplicationProperties["NServiceBus.MessageId"]] = true
			must(t, r.CompleteMessage(within(t), m, nil))
		}
	}
	if !ids["waiting"] || !ids["later"] {
		t.Errorf("received %v", ids)
	}
}

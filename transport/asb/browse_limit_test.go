package asb_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
)

// A Take locks the messages in front. Taking the last message over and over leaves each of the
// others in the queue, whether or not the credential may read the limit.
func TestTakesStopBeforeTheDeliveryLimit(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		rights []string
		most   int32
		advice string
	}{
		"the limit is read":    {nil, 3, "dead-letters a message after 3 deliveries"},
		"the limit is assumed": {[]string{"Listen", "Send"}, 10, "could not be read, which needs the right to manage"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := brokertest.OwnServiceBusOf(t, brokertest.ServiceBusAzure)
			_, err := rawAdmin(t, ns).CreateQueue(within(t), "error", &admin.CreateQueueOptions{Properties: &admin.QueueProperties{MaxDeliveryCount: new(test.most)}})
			must(t, err)
			tr := on(ns)
			if test.rights != nil {
				tr.ConnectionString = ns.Control.Restricted(test.rights...)
			}
			c := open(t, tr)
			const messages = 20
			for i := range messages {
				dispatch(t, c, to("error", fmt.Sprint("m-", i)))
			}
			taken := 0
			for try := range int(test.most) + 2 {
				cur, err := c.(transport.Browser).Browse(within(t), "error")
				must(t, err)
				ms, err := cur.Next(within(t), messages)
				must(t, err)
				err = cur.Take(within(t), ms[len(ms)-1], nil)
				must(t, cur.Close())
				if err == nil {
					taken++
					continue
				}
				if !errors.Is(err, transport.ErrDeliveryLimit) {
					t.Fatalf("try %d: %v, want ErrDeliveryLimit", try, err)
				}
				says(t, err, keyOf(tr.ConnectionString), test.advice, "Set the queue's MaxDeliveryCount to 2147483647")
			}
			if want := int(test.most) - 1; taken != want {
				t.Errorf("%d messages were taken, want %d: one delivery is left", taken, want)
			}
			if got := ns.Control.State().Queues["error"]; got.Active != messages-taken || got.DeadLetters != 0 {
				t.Errorf("%d messages and %d dead letters, want %d and none", got.Active, got.DeadLetters, messages-taken)
			}
			if ds := nextN(t, receive(t, c, "error"), messages-taken); len(ds) != messages-taken {
				t.Errorf("%d messages have a delivery left", len(ds))
			}
		})
	}
}

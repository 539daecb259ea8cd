package brokertest_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

// status returns the status of an answer of the administration, or 0 for another error.
func status(err error) int {
	var response *azcore.ResponseError
	if errors.As(err, &response) {
		return response.StatusCode
	}
	return 0
}

func TestServiceBusMakesShowsAndChangesQueues(t *testing.T) {
	b := newBus(t)
	other := b.queue(admin.QueueProperties{})
	q := b.queue(admin.QueueProperties{
		LockDuration: to.Ptr("PT30S"), MaxDeliveryCount: to.Ptr[int32](9), RequiresSession: to.Ptr(false),
		RequiresDuplicateDetection: to.Ptr(true), DuplicateDetectionHistoryTimeWindow: to.Ptr("PT5M"),
		DefaultMessageTimeToLive: to.Ptr("PT50M"), DeadLetteringOnMessageExpiration: to.Ptr(true),
		ForwardDeadLetteredMessagesTo: &other, UserMetadata: to.Ptr("<of> & \"ours\""),
	})
	found, err := b.admin.GetQueue(b.ctx, q, nil)
	b.must(err)
	b.equal(of(found.LockDuration), "PT30S")
	b.equal(of(found.MaxDeliveryCount), int32(9))
	b.equal(of(found.RequiresDuplicateDetection), true)
	b.equal(of(found.DuplicateDetectionHistoryTimeWindow), "PT5M")
	b.equal(of(found.DefaultMessageTimeToLive), "PT50M")
	b.equal(of(found.UserMetadata), "<of> & \"ours\"")
	if !strings.HasPrefix(of(found.ForwardDeadLetteredMessagesTo), "sb://") || !strings.HasSuffix(of(found.ForwardDeadLetteredMessagesTo), "/"+other) {
		t.Errorf("dead letters go to %s", of(found.ForwardDeadLetteredMessagesTo))
	}
	changed := found.QueueProperties
	changed.MaxDeliveryCount, changed.ForwardDeadLetteredMessagesTo = to.Ptr[int32](7), nil
	_, err = b.admin.UpdateQueue(b.ctx, q, changed, nil)
	b.must(err)
	found, err = b.admin.GetQueue(b.ctx, q, nil)
	b.must(err)
	b.equal(of(found.MaxDeliveryCount), int32(7))
	b.equal(found.ForwardDeadLetteredMessagesTo, (*string)(nil))
	changed.RequiresSession = to.Ptr(true)
	if _, err := b.admin.UpdateQueue(b.ctx, q, changed, nil); status(err) != 400 {
		t.Errorf("sessions were switched on later: %v", err)
	}
}

func TestServiceBusRefusesExistingAndMissingEntities(t *testing.T) {
	b := newBus(t)
	q := b.queue(admin.QueueProperties{})
	if _, err := b.admin.CreateQueue(b.ctx, q, nil); status(err) != 409 {
		t.Errorf("a second one: %v, want status 409", err)
	}
	none := brokertest.Name(t, "none")
	if found, err := b.admin.GetQueue(b.ctx, none, nil); found != nil || err != nil {
		t.Errorf("a missing queue: %v, %v", found, err)
	}
	if _, err := b.admin.UpdateQueue(b.ctx, none, admin.QueueProperties{}, nil); status(err) != 404 {
		t.Errorf("change a missing queue: %v, want status 404", err)
	}
	if _, err := b.admin.DeleteQueue(b.ctx, none, nil); status(err) != 404 {
		t.Errorf("delete a missing queue: %v, want status 404", err)
	}
	for name, properties := range map[string]admin.QueueProperties{
		"a lock of 6 minutes":        {LockDuration: to.Ptr("PT6M")},
		"a duration that is none":    {LockDuration: to.Ptr("soon")},
		"no delivery at all":         {MaxDeliveryCount: to.Ptr[int32](0)},
		"forwarding to what is not":  {ForwardTo: &none},
		"forwarding to where it is":  {ForwardTo: to.Ptr(none + "-2")},
		"dead letters to nowhere":    {ForwardDeadLetteredMessagesTo: &none},
		"deletion when idle for 1 s": {AutoDeleteOnIdle: to.Ptr("PT1S")},
	} {
		if _, err := b.admin.CreateQueue(b.ctx, none+"-2", &admin.CreateQueueOptions{Properties: &properties}); status(err) != 400 {
			t.Errorf("%s: %v, want status 400", name, err)
		}
	}
	topic := b.topic(admin.TopicProperties{})
	if _, err := b.admin.CreateSubscription(b.ctx, topic, strings.Repeat("x", 51), nil); status(err) != 400 {
		t.Errorf("a name of 51 letters: %v, want status 400", err)
	}
	if _, err := b.admin.CreateSubscription(b.ctx, none, "s", nil); status(err) != 404 {
		t.Errorf("subscribe to a missing topic: %v, want status 404", err)
	}
}

func TestServiceBusListsByPages(t *testing.T) {
	b := ownBus(t)
	var want []string
	for i := range 7 {
		name := fmt.Sprintf("list/queue-%d", i)
		_, err := b.admin.CreateQueue(b.ctx, name, nil)
		b.must(err)
		want = append(want, name)
	}
	var got []string
	for pager := b.admin.NewListQueuesPager(&admin.ListQueuesOptions{MaxPageSize: 3}); pager.More(); {
		page, err := pager.NextPage(b.ctx)
		b.must(err)
		for _, q := range page.Queues {
			got = append(got, q.QueueName)
		}
	}
	b.equal(got, want)
	topic := b.topic(admin.TopicProperties{})
	_, err := b.admin.CreateSubscription(b.ctx, topic, "one", nil)
	b.must(err)
	got = nil
	for pager := b.admin.NewListSubscriptionsPager(topic, nil); pager.More(); {
		page, err := pager.NextPage(b.ctx)
		b.must(err)
		for _, s := range page.Subscriptions {
			got = append(got, s.SubscriptionName)
		}
	}
	b.equal(got, []string{"one"})
	got = nil
	for pager := b.admin.NewListTopicsPager(nil); pager.More(); {
		page, err := pager.NextPage(b.ctx)
		b.must(err)
		for _, topic := range page.Topics {
			got = append(got, topic.TopicName)
		}
	}
	b.equal(got, []string{topic})
}

func TestServiceBusCountsMessages(t *testing.T) {
	b := newBus(t)
	q := b.queue(admin.QueueProperties{})
	b.send(q, text("1"), text("2"), text("3"))
	s := b.sender(q)
	later := text("later")
	_, err := s.ScheduleMessages(b.ctx, []*azservicebus.Message{&later}, farAway(), nil)
	b.must(err)
	r := b.receiver(q)
	b.must(r.DeadLetterMessage(b.ctx, b.receive(r), nil))
	found, err := b.admin.GetQueueRuntimeProperties(b.ctx, q, nil)
	b.must(err)
	b.equal(found.ActiveMessageCount, int32(2))
	b.equal(found.DeadLetterMessageCount, int32(1))
	b.equal(found.ScheduledMessageCount, int32(1))
	b.equal(found.TotalMessageCount, int64(4))
}

func TestServiceBusDeletesEntities(t *testing.T) {
	b := ownBus(t)
	q := b.queue(admin.QueueProperties{})
	b.send(q, text("x"))
	r := b.receiver(q)
	b.receive(r)
	_, err := b.admin.DeleteQueue(b.ctx, q, nil)
	b.must(err)
	if _, err := r.ReceiveMessages(b.ctx, 1, nil); err == nil || !strings.Contains(err.Error(), "amqp:not-found") {
		t.Errorf("receive: %v", err)
	}
	m := text("y")
	b.code(b.sender(q).SendMessage(b.ctx, &m, nil), azservicebus.CodeNotFound)
	_, err = b.admin.CreateQueue(b.ctx, q, nil)
	b.must(err)
	b.nothing(b.receiver(q))
}

func TestServiceBusDescribesItself(t *testing.T) {
	b := newBus(t)
	found, err := b.admin.GetNamespaceProperties(b.ctx, nil)
	b.must(err)
	if found.SKU == "" || found.Name == "" {
		t.Errorf("got %+v", found)
	}
}

func TestServiceBusKeepsTheLimitsOfItsProfile(t *testing.T) {
	t.Parallel()
	for profile, refused := range map[brokertest.ServiceBusProfile]map[string]admin.QueueProperties{
		brokertest.ServiceBusAzure: {
			"a lock of 4 seconds": {LockDuration: to.Ptr("PT4S")},
		},
		brokertest.ServiceBusEmulator: {
			"a lock of 4 seconds": {LockDuration: to.Ptr("PT4S")},
			"11 deliveries":       {MaxDeliveryCount: to.Ptr[int32](11)},
			"101 MB":              {MaxSizeInMegabytes: to.Ptr[int32](101)},
			"two hours to live":   {DefaultMessageTimeToLive: to.Ptr("PT2H")},
		},
	} {
		b := busOn(t, brokertest.OwnServiceBusOf(t, profile))
		for what, properties := range refused {
			if _, err := b.admin.CreateQueue(b.ctx, "q", &admin.CreateQueueOptions{Properties: &properties}); status(err) != 400 {
				t.Errorf("%s: %s: %v, want status 400", profile, what, err)
			}
		}
		b.queue(admin.QueueProperties{LockDuration: to.Ptr("PT5S"), MaxDeliveryCount: to.Ptr[int32](10), MaxSizeInMegabytes: to.Ptr[int32](100)})
	}
}

func TestServiceBusEmulatorIsSmall(t *testing.T) {
	t.Parallel()
	b := busOn(t, brokertest.OwnServiceBusOf(t, brokertest.ServiceBusEmulator))
	var err error
	for i := 0; i <= 50 && err == nil; i++ {
		_, err = b.admin.CreateQueue(b.ctx, fmt.Sprint("q", i), nil)
		if i == 50 && status(err) != 403 {
			t.Errorf("one more than 50 queues: %v, want status 403", err)
		}
	}
	found, err := b.admin.GetQueue(b.ctx, "q0", nil)
	b.must(err)
	b.equal(of(found.DefaultMessageTimeToLive), "PT1H")

	for range 9 { // and the bus has one
		client, _ := b.dial(b.ConnectionString)
		_, err := b.peekBy(client, "q0")
		b.must(err)
	}
	_, err = b.peekBy(b.client, "q0")
	b.must(err)
	client, _ := b.dial(b.ConnectionString)
	ctx, cancel := context.WithTimeout(b.ctx, time.Second)
	defer cancel()
	eleventh := *b
	eleventh.ctx = ctx
	if _, err := eleventh.peekBy(client, "q0"); err == nil {
		t.Error("there are 11 connections")
	}
}

func (b *bus) peekBy(client *azservicebus.Client, queue string) ([]*azservicebus.ReceivedMessage, error) {
	b.Helper()
	r, err := client.NewReceiverForQueue(queue, nil)
	b.must(err)
	return r.PeekMessages(b.ctx, 1, nil)
}

// A client breaks off a request. The stand-in serves all namespaces of the test binary, and must go
// on.
func TestServiceBusOutlivesRequestsThatBreakOff(t *testing.T) {
	ns := brokertest.OwnServiceBus(t)
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(ns.Admin, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprint(c, "PUT /orders HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n<entry"); err != nil {
		t.Fatal(err)
	}
	ns.Control.State() // after the stand-in has read the request
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		ns.Control.State()
	}
}

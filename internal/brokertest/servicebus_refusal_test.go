package brokertest_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
	"github.com/Azure/go-amqp"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

// says fails the test unless err has all texts.
func (b *bus) says(err error, texts ...string) {
	b.Helper()
	for _, text := range texts {
		if err == nil || !strings.Contains(err.Error(), text) {
			b.Errorf("got %v, want %q", err, text)
		}
	}
}

func TestServiceBusRefusesManagementByStatus(t *testing.T) {
	b := ownBus(t)
	q := b.queue(admin.QueueProperties{})
	s := b.sender(q)
	schedule := func() ([]int64, error) {
		m := text("later")
		return s.ScheduleMessages(b.ctx, []*azservicebus.Message{&m}, farAway(), nil)
	}
	for status, want := range map[int]string{
		400: "status code 400", 403: "reached its maximum size", 413: "exceeds the limit", 429: "Error code: 50009",
		500: "unable to process the request", 503: "Please wait 10 seconds and try again",
	} {
		b.Control.Set(brokertest.ServiceBusFaults{Management: brokertest.ServiceBusRefusal{Status: status, Operation: "schedule-message"}})
		_, err := schedule()
		b.says(err, want)
	}
	b.equal(b.Control.State().Queues[q].Scheduled, 0)

	b.Control.Set(brokertest.ServiceBusFaults{Management: brokertest.ServiceBusRefusal{Status: 503, Times: 2}}) // the SDK tries again
	numbers, err := schedule()
	b.must(err)
	b.Control.Set(brokertest.ServiceBusFaults{Management: brokertest.ServiceBusRefusal{Status: 503, Address: "another"}})
	b.must(s.CancelScheduledMessages(b.ctx, numbers, nil))
}

func TestServiceBusIsAlreadyCancelling(t *testing.T) {
	b := ownBus(t)
	q := b.queue(admin.QueueProperties{})
	s := b.sender(q)
	m := text("later")
	numbers, err := s.ScheduleMessages(b.ctx, []*azservicebus.Message{&m}, farAway(), nil)
	b.must(err)
	b.Control.Set(brokertest.ServiceBusFaults{Management: brokertest.ServiceBusRefusal{Status: 400, Operation: "cancel-scheduled-message", Late: true}})
	b.says(s.CancelScheduledMessages(b.ctx, numbers, nil), "status code 400", "is already being cancelled")
	b.equal(b.Control.State().Queues[q].Scheduled, 0)
	b.Control.Set(brokertest.ServiceBusFaults{})
	b.code(s.CancelScheduledMessages(b.ctx, numbers, nil), azservicebus.CodeNotFound)
}

func TestServiceBusThrottlesClaims(t *testing.T) {
	b := ownBus(t)
	q := b.queue(admin.QueueProperties{})
	b.Control.Set(brokertest.ServiceBusFaults{Claims: brokertest.ServiceBusRefusal{Status: 503}})
	m := text("x")
	b.says(b.sender(q).SendMessage(b.ctx, &m, nil), "503", "Error code: 50009")
	if claims := b.Control.State().Counts.Claims; claims < 4 {
		t.Errorf("%d tokens were shown, want one for each try", claims)
	}
	b.Control.Set(brokertest.ServiceBusFaults{})
	b.must(b.sender(q).SendMessage(b.ctx, &m, nil))
}

func TestServiceBusMissesATopicsManagementForAMoment(t *testing.T) {
	b := ownBus(t)
	topic := b.topic(admin.TopicProperties{})
	subscription := b.subscribe(topic, "all", nil)
	for _, faults := range []brokertest.ServiceBusFaults{
		{Claims: brokertest.ServiceBusRefusal{Status: 404, Address: topic + "/$management", Times: 1}},
		{Links: brokertest.ServiceBusRefusal{Status: 404, Address: topic + "/$management", Times: 1}},
	} {
		b.Control.Set(faults)
		m := text("x")
		s := b.sender(topic)
		err := s.SendMessage(b.ctx, &m, nil)
		var condition *amqp.Error
		var is *azservicebus.Error
		if (!errors.As(err, &condition) || condition.Condition != amqp.ErrCondNotFound) && (!errors.As(err, &is) || is.Code != azservicebus.CodeNotFound) {
			t.Errorf("got %v, want not found", err)
		}
		b.must(s.SendMessage(b.ctx, &m, nil))
	}
	b.equal(b.Control.State().Queues[subscription].Active, 2)
}

// The service refuses it: "Throws error when dead lettering a dead lettered message" in the tests
// of Microsoft's client for JavaScript.
func TestServiceBusRefusesToDeadLetterADeadLetter(t *testing.T) {
	b := newBus(t)
	q := b.queue(admin.QueueProperties{})
	b.send(q, text("x"))
	r, dead := b.receiver(q), b.deadLetters(q)
	b.must(r.DeadLetterMessage(b.ctx, b.receive(r), nil))
	letter := b.receive(dead)
	for _, m := range []*azservicebus.ReceivedMessage{onManagement(letter), letter} {
		ctx, cancel := context.WithTimeout(b.ctx, time.Second) // the SDK tries again and again
		if err := dead.DeadLetterMessage(ctx, m, &azservicebus.DeadLetterOptions{Reason: to.Ptr("again")}); err == nil {
			t.Error("a dead letter was dead-lettered")
		}
		cancel()
	}
	b.must(dead.CompleteMessage(b.ctx, onManagement(letter), nil)) // its lock is as it was
}

// https://github.com/Azure/azure-sdk-for-net/issues/53437
func TestServiceBusDoesNotCountDeliveriesOfDeadLetters(t *testing.T) {
	b := newBus(t)
	q := b.queue(admin.QueueProperties{MaxDeliveryCount: to.Ptr[int32](2)})
	b.send(q, text("x"))
	r, dead := b.receiver(q), b.deadLetters(q)
	b.must(r.DeadLetterMessage(b.ctx, b.receive(r), nil))
	first := b.receive(dead)
	b.must(dead.AbandonMessage(b.ctx, first, nil))
	for range 3 {
		m := b.receive(dead)
		b.equal(m.DeliveryCount, first.DeliveryCount)
		b.must(dead.AbandonMessage(b.ctx, m, nil))
	}
}

func TestServiceBusEndsLocksWithTheirLinks(t *testing.T) {
	t.Parallel()
	for profile, count := range map[brokertest.ServiceBusProfile]uint32{
		brokertest.ServiceBusAzure: 0, brokertest.ServiceBusLinksUncounted: 1, brokertest.ServiceBusLinksCounted: 2,
	} {
		t.Run(string(profile), func(t *testing.T) {
			t.Parallel()
			b := busOn(t, brokertest.OwnServiceBusOf(t, profile))
			q := b.queue(admin.QueueProperties{})
			b.send(q, text("x"))
			r, other := b.receiver(q), b.receiver(q)
			m := b.receive(r)
			b.must(r.Close(b.ctx))
			if count == 0 {
				b.nothing(other)
				b.must(other.CompleteMessage(b.ctx, onManagement(m), nil))
				return
			}
			b.lost(other.CompleteMessage(b.ctx, onManagement(m), nil))
			b.equal(b.receive(other).DeliveryCount, count)
		})
	}
}

func TestServiceBusNumbersMessagesByPartition(t *testing.T) {
	b := ownBus(t)
	q := b.queue(admin.QueueProperties{EnablePartitioning: to.Ptr(true)})
	const total = 40
	for range total {
		b.send(q, text("x"))
	}
	keyed := azservicebus.Message{Body: []byte("x"), PartitionKey: to.Ptr("key")}
	b.send(q, keyed, keyed, keyed)
	m := text("later")
	numbers, err := b.sender(q).ScheduleMessages(b.ctx, []*azservicebus.Message{&m}, farAway(), nil)
	b.must(err)
	b.must(b.sender(q).CancelScheduledMessages(b.ctx, numbers, nil))

	r := b.receiver(q)
	partitions, keys := map[int64]int{}, map[int64]int{}
	for from, page := int64(0), 0; page < 3; page++ { // it shows one of all messages
		m := b.one(r.PeekMessages(b.ctx, total, &azservicebus.PeekMessagesOptions{FromSequenceNumber: &from}))
		partitions[of(m.SequenceNumber)>>48]++
	}
	b.equal(len(partitions), 3) // of another partition each time
	for range total + 3 {
		m := b.receive(r)
		partition := of(m.SequenceNumber) >> 48
		partitions[partition]++
		if m.PartitionKey != nil {
			keys[partition]++
		}
		b.must(r.CompleteMessage(b.ctx, m, nil))
	}
	if len(partitions) != 16 || len(keys) != 1 {
		t.Errorf("partitions %v, those of one key %v", partitions, keys)
	}
	b.nothing(r)
}

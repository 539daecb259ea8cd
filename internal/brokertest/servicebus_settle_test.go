package brokertest_test

import (
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

func TestServiceBusCompletes(t *testing.T) {
	b := newBus(t)
	q := b.queue(admin.QueueProperties{})
	b.send(q, text("hello"))
	r := b.receiver(q)
	m := b.receive(r)
	b.equal(string(m.Body), "hello")
	b.equal(m.DeliveryCount, uint32(1))
	if of(m.SequenceNumber) <= 0 {
		t.Errorf("it has number %d", of(m.SequenceNumber))
	}
	b.equal(m.State, azservicebus.MessageStateActive)
	if since := time.Since(of(m.EnqueuedTime)); since < 0 || since > time.Minute {
		t.Errorf("it was sent %v ago", since)
	}
	b.must(r.CompleteMessage(b.ctx, m, nil))
	b.lost(r.CompleteMessage(b.ctx, onManagement(m), nil)) // it does not exist any more
	b.nothing(r)
}

func TestServiceBusCountsAbandonedDeliveries(t *testing.T) {
	b := newBus(t)
	q := b.queue(admin.QueueProperties{})
	b.send(q, azservicebus.Message{Body: []byte("x"), ApplicationProperties: map[string]any{"kept": int32(1), "changed": "old"}})
	r := b.receiver(q)
	for delivery := range uint32(3) {
		m := b.receive(r)
		b.equal(m.DeliveryCount, delivery+1)
		change := &azservicebus.AbandonMessageOptions{PropertiesToModify: map[string]any{"changed": "new", "tries": int64(delivery)}}
		if delivery == 1 {
			m = onManagement(m)
		}
		b.must(r.AbandonMessage(b.ctx, m, change))
	}
	m := b.receive(r)
	b.equal(m.ApplicationProperties, map[string]any{"kept": int32(1), "changed": "new", "tries": int64(2)})
	b.must(r.CompleteMessage(b.ctx, m, nil))
}

// The service promises a place at or near the front. The stand-in puts it at the front.
func TestServiceBusReturnsAbandonedMessagesToTheFront(t *testing.T) {
	b := ownBus(t)
	q := b.queue(admin.QueueProperties{})
	b.send(q, text("1"), text("2"), text("3"))
	r := b.receiver(q)
	first := b.receive(r)
	b.must(r.AbandonMessage(b.ctx, first, nil))
	for _, want := range []string{"1", "2", "3"} {
		m := b.receive(r)
		b.equal(string(m.Body), want)
		b.must(r.CompleteMessage(b.ctx, m, nil))
	}
}

func TestServiceBusDeadLettersAfterTooManyDeliveries(t *testing.T) {
	b := newBus(t)
	q := b.queue(admin.QueueProperties{MaxDeliveryCount: to.Ptr[int32](3)})
	b.send(q, text("x"))
	r := b.receiver(q)
	for range 3 {
		b.must(r.AbandonMessage(b.ctx, b.receive(r), nil))
	}
	dead := b.deadLetters(q)
	m := b.receive(dead)
	b.equal(of(m.DeadLetterReason), "MaxDeliveryCountExceeded")
	b.equal(of(m.DeadLetterSource), q)
	b.nothing(r)
	b.must(dead.CompleteMessage(b.ctx, m, nil))
}

func TestServiceBusDeadLettersWithReasonAndProperties(t *testing.T) {
	b := newBus(t)
	q := b.queue(admin.QueueProperties{})
	b.send(q, text("on the link"), text("by management"))
	r, dead := b.receiver(q), b.deadLetters(q)
	options := &azservicebus.DeadLetterOptions{
		Reason: to.Ptr("unreadable"), ErrorDescription: to.Ptr("no header"),
		PropertiesToModify: map[string]any{"by": "test", "n": int32(7)},
	}
	for i := range 2 {
		m := b.receive(r)
		if i == 1 {
			m = onManagement(m)
		}
		start := time.Now()
		b.must(r.DeadLetterMessage(b.ctx, m, options))
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("it took %v: the SDK did not understand the answer", took)
		}
		letter := b.receive(dead)
		b.equal(letter.Body, m.Body)
		b.equal(of(letter.DeadLetterReason), "unreadable")
		b.equal(of(letter.DeadLetterErrorDescription), "no header")
		b.equal(letter.ApplicationProperties["by"], any("test"))
		b.equal(letter.ApplicationProperties["n"], any(int32(7)))
		b.must(dead.CompleteMessage(b.ctx, letter, nil))
	}
}

func TestServiceBusReturnsAMessageWhoseLockExpires(t *testing.T) {
	b := newBus(t)
	q := b.queue(admin.QueueProperties{LockDuration: b.brief()})
	b.send(q, text("x"))
	r := b.receiver(q)
	first := b.receive(r)
	second := b.receive(b.receiver(q))
	b.equal(second.DeliveryCount, uint32(2))
	if late := time.Since(of(first.LockedUntil)); late < 0 {
		t.Errorf("it came %v before its lock was over", -late)
	}
}

func TestServiceBusAnswersLockLostToLateSettlements(t *testing.T) {
	b := newBus(t)
	q := b.queue(admin.QueueProperties{LockDuration: to.Ptr("PT5S")})
	settles := map[string]func(*azservicebus.Receiver, *azservicebus.ReceivedMessage) error{
		"complete": func(r *azservicebus.Receiver, m *azservicebus.ReceivedMessage) error {
			return r.CompleteMessage(b.ctx, m, nil)
		},
		"abandon": func(r *azservicebus.Receiver, m *azservicebus.ReceivedMessage) error {
			return r.AbandonMessage(b.ctx, m, nil)
		},
		"defer": func(r *azservicebus.Receiver, m *azservicebus.ReceivedMessage) error {
			return r.DeferMessage(b.ctx, m, nil)
		},
		"dead-letter": func(r *azservicebus.Receiver, m *azservicebus.ReceivedMessage) error {
			return r.DeadLetterMessage(b.ctx, m, nil)
		},
		"renew": func(r *azservicebus.Receiver, m *azservicebus.ReceivedMessage) error {
			return r.RenewMessageLock(b.ctx, m, nil)
		},
	}
	for name := range settles {
		b.send(q, text(name))
	}
	r, other := b.receiver(q), b.receiver(q)
	late := b.receiveAll(r, len(settles))
	b.receiveAll(other, len(settles)) // the same messages, by new locks
	for name, settle := range settles {
		for _, m := range []*azservicebus.ReceivedMessage{onManagement(late[name]), late[name]} {
			if err := settle(r, m); err == nil {
				t.Errorf("%s: no error", name)
			} else {
				b.lost(err)
			}
		}
	}
	for range settles { // nothing has happened to them
		m := b.receive(r)
		b.must(r.CompleteMessage(b.ctx, m, nil))
	}
	b.nothing(b.deadLetters(q))
}

// receiveAll receives n different messages and returns them by their bodies.
func (b *bus) receiveAll(r *azservicebus.Receiver, n int) map[string]*azservicebus.ReceivedMessage {
	b.Helper()
	all := make(map[string]*azservicebus.ReceivedMessage)
	for len(all) < n {
		m := b.receive(r)
		all[string(m.Body)] = m
	}
	return all
}

func TestServiceBusRenewsLocks(t *testing.T) {
	b := newBus(t)
	q := b.queue(admin.QueueProperties{LockDuration: to.Ptr("PT5S")})
	b.send(q, text("x"))
	r := b.receiver(q)
	m := b.receive(r)
	before := of(m.LockedUntil)
	for start := time.Now(); time.Since(start) < 2*time.Until(before); {
		b.must(r.RenewMessageLock(b.ctx, m, nil))
	}
	b.must(r.RenewMessageLock(b.ctx, m, nil))
	if !of(m.LockedUntil).After(before) {
		t.Errorf("locked until %v, before until %v", of(m.LockedUntil), before)
	}
	b.must(r.CompleteMessage(b.ctx, m, nil))
}

func TestServiceBusKeepsLocksOverTheEndOfALink(t *testing.T) {
	b := newBus(t)
	q := b.queue(admin.QueueProperties{})
	b.send(q, text("x"))
	r := b.receiver(q)
	m := b.receive(r)
	b.must(r.Close(b.ctx))
	other := b.receiver(q)
	b.nothing(other)
	b.must(other.CompleteMessage(b.ctx, onManagement(m), nil))
	b.lost(other.CompleteMessage(b.ctx, onManagement(m), nil))
}

func TestServiceBusDefersUntilAskedFor(t *testing.T) {
	b := newBus(t)
	q := b.queue(admin.QueueProperties{})
	b.send(q, text("x"))
	r := b.receiver(q)
	m := b.receive(r)
	b.must(r.DeferMessage(b.ctx, m, nil))
	b.nothing(r)
	b.equal(b.one(r.PeekMessages(b.ctx, 1, nil)).State, azservicebus.MessageStateDeferred)

	number := []int64{of(m.SequenceNumber)}
	b.must(r.AbandonMessage(b.ctx, b.one(r.ReceiveDeferredMessages(b.ctx, number, nil)), nil)) // it stays deferred
	m = b.one(r.ReceiveDeferredMessages(b.ctx, number, nil))
	b.equal(m.DeliveryCount, uint32(2))
	b.must(r.CompleteMessage(b.ctx, m, nil))
	_, err := r.ReceiveDeferredMessages(b.ctx, number, nil)
	b.code(err, azservicebus.CodeNotFound)
}

func TestServiceBusReceivesAndDeletes(t *testing.T) {
	b := newBus(t)
	q := b.queue(admin.QueueProperties{})
	b.send(q, text("1"), text("2"))
	r, err := b.client.NewReceiverForQueue(q, &azservicebus.ReceiverOptions{ReceiveMode: azservicebus.ReceiveModeReceiveAndDelete})
	b.must(err)
	b.equal(string(b.receive(r).Body), "1")
	b.must(r.Close(b.ctx))
	b.equal(string(b.complete(q).Body), "2")
}

func TestServiceBusDoesNotCountReleases(t *testing.T) {
	b := newBus(t)
	q := b.queue(admin.QueueProperties{})
	r := b.receiver(q)
	b.nothing(r) // credit is left: the SDK releases messages that come between two calls
	b.send(q, text("x"))
	b.equal(b.receive(r).DeliveryCount, uint32(1))
}

package brokertest_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

// sessionQueue creates a queue of sessions that are locked for a duration as of ISO 8601.
func (b *bus) sessionQueue(lock string) string {
	b.Helper()
	return b.queue(admin.QueueProperties{RequiresSession: to.Ptr(true), LockDuration: &lock})
}

func inSession(id, body string) azservicebus.Message {
	return azservicebus.Message{Body: []byte(body), SessionID: &id}
}

func (b *bus) accept(queue, session string) *azservicebus.SessionReceiver {
	b.Helper()
	r, err := b.client.AcceptSessionForQueue(b.ctx, queue, session, nil)
	b.must(err)
	return r
}

func (b *bus) next(queue string) *azservicebus.SessionReceiver {
	b.Helper()
	r, err := b.client.AcceptNextSessionForQueue(b.ctx, queue, nil)
	b.must(err)
	return r
}

// read receives and completes messages of a session.
func (b *bus) read(r *azservicebus.SessionReceiver, n int) (all []string) {
	b.Helper()
	for len(all) < n {
		messages, err := r.ReceiveMessages(b.ctx, n, nil)
		b.must(err)
		all = append(all, bodies(messages)...)
		for _, m := range messages {
			b.must(r.CompleteMessage(b.ctx, m, nil))
		}
	}
	return all
}

func TestServiceBusDeliversSessionsAsAWhole(t *testing.T) {
	b := newBus(t)
	q := b.sessionQueue("PT30S")
	b.send(q, inSession("a", "a1"), inSession("b", "b1"), inSession("a", "a2"), inSession("b", "b2"))
	first, second := b.next(q), b.next(q) // in any order
	b.equal(b.read(second, 2), []string{second.SessionID() + "1", second.SessionID() + "2"})
	b.equal(b.read(first, 2), []string{first.SessionID() + "1", first.SessionID() + "2"})
	if first.SessionID() == second.SessionID() {
		t.Errorf("session %q was accepted twice", first.SessionID())
	}
	if until := time.Until(first.LockedUntil()); until <= 0 || until > time.Minute {
		t.Errorf("locked for another %v", until)
	}
}

func TestServiceBusWaitsForASession(t *testing.T) {
	b := newBus(t)
	q := b.sessionQueue("PT30S")
	ctx, cancel := context.WithTimeout(b.ctx, 300*time.Millisecond)
	defer cancel()
	_, err := b.client.AcceptNextSessionForQueue(ctx, q, nil)
	var is *azservicebus.Error
	if !errors.Is(err, context.DeadlineExceeded) && (!errors.As(err, &is) || is.Code != azservicebus.CodeTimeout) {
		t.Errorf("without a session: %v", err)
	}
	accepted := make(chan *azservicebus.SessionReceiver)
	go func() {
		defer close(accepted)
		if r, err := b.client.AcceptNextSessionForQueue(b.ctx, q, nil); err == nil {
			accepted <- r
		}
	}()
	b.send(q, inSession("late", "x"))
	r, ok := <-accepted
	if !ok {
		t.Fatal("no session came")
	}
	b.equal(b.read(r, 1), []string{"x"})
}

func TestServiceBusLocksSessions(t *testing.T) {
	b := newBus(t)
	q := b.sessionQueue("PT30S")
	r := b.accept(q, "mine")
	if _, err := b.client.AcceptSessionForQueue(b.ctx, q, "mine", nil); err == nil {
		t.Error("two have the same session")
	}
	b.must(r.SetSessionState(b.ctx, []byte("state"), nil))
	before := r.LockedUntil()
	for !r.LockedUntil().After(before) {
		b.must(r.RenewSessionLock(b.ctx, nil))
	}
	b.must(r.Close(b.ctx))
	r = b.accept(q, "mine")
	state, err := r.GetSessionState(b.ctx, nil)
	b.must(err)
	b.equal(string(state), "state")
	b.must(r.SetSessionState(b.ctx, nil, nil))
	state, err = r.GetSessionState(b.ctx, nil)
	b.must(err)
	b.equal(len(state), 0)
}

func TestServiceBusCountsDeliveriesOfLostSessions(t *testing.T) {
	b := newBus(t)
	q := b.sessionQueue("PT5S")
	b.send(q, inSession("a", "x"))
	count := func(r *azservicebus.SessionReceiver) uint32 {
		return b.one(r.ReceiveMessages(b.ctx, 1, nil)).DeliveryCount
	}
	r := b.next(q)
	b.equal(count(r), uint32(1))
	b.must(r.Close(b.ctx))
	r = b.next(q)
	b.equal(count(r), uint32(1))
	b.equal(count(b.next(q)), uint32(2)) // it waits until the lock is over
}

func TestServiceBusDefersInSessions(t *testing.T) {
	b := newBus(t)
	q := b.queue(admin.QueueProperties{RequiresSession: to.Ptr(true)})
	b.send(q, inSession("a", "x"), inSession("a", "y"))
	r := b.next(q)
	m := b.one(r.ReceiveMessages(b.ctx, 1, nil))
	b.must(r.DeferMessage(b.ctx, m, nil))
	b.equal(b.read(r, 1), []string{"y"})
	m = b.one(r.ReceiveDeferredMessages(b.ctx, []int64{of(m.SequenceNumber)}, nil))
	b.equal(string(m.Body), "x")
	b.must(r.CompleteMessage(b.ctx, m, nil))
}

func TestServiceBusListsSessions(t *testing.T) {
	b := newBus(t)
	q := b.sessionQueue("PT30S")
	b.send(q, inSession("b", "x"), inSession("a", "x"))
	var names []string
	for pager := b.client.NewListSessionsForQueuePager(q, nil); pager.More(); {
		page, err := pager.NextPage(b.ctx)
		b.must(err)
		names = append(names, page.Sessions...)
	}
	slices.Sort(names)
	b.equal(names, []string{"a", "b"})
}

func TestServiceBusRefusesMisuseOfSessions(t *testing.T) {
	b := newBus(t)
	q := b.sessionQueue("PT30S")
	m := text("no session")
	if err := b.sender(q).SendMessage(b.ctx, &m, nil); err == nil {
		t.Error("a message without session was taken")
	}
	if _, err := b.receiver(q).ReceiveMessages(b.ctx, 1, nil); err == nil {
		t.Error("a receiver without session was let in")
	}
	if _, err := b.client.AcceptNextSessionForQueue(b.ctx, b.queue(admin.QueueProperties{}), nil); err == nil {
		t.Error("a queue without sessions gave one")
	}
}

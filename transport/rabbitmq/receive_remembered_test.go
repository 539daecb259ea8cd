package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

// lostChannel returns a channel on which nothing can be acknowledged any more, with the unsettled
// deliveries "m-1" to "m-n".
func lostChannel(n int) (*channel, []*delivery) {
	s := &channel{receiver: &receiver{of: &receivers{core: &core{}}, queue: "orders", adjust: make(chan struct{}, 1)}, ch: &amqp.Channel{}}
	s.idled.L = &s.mu
	s.acks = acks{settler: settler{ch: cut{}}, timer: time.NewTimer(time.Hour), window: 100}
	ds := make([]*delivery, n)
	for i := range ds {
		ds[i] = &delivery{channel: s, from: &consumer{}, tag: uint64(i + 1), receivedAt: time.Now(), message: transport.Message{ID: fmt.Sprint("m-", i+1)}}
		s.acks.add(ds[i])
	}
	return s, ds
}

type cut struct{}

var errCut = errors.New("cut")

func (cut) Ack(uint64, bool) error        { return errCut }
func (cut) Nack(uint64, bool, bool) error { return errCut }
func (cut) Reject(uint64, bool) error     { return errCut }

func TestAPendingAcknowledgementIsRemembered(t *testing.T) {
	s, ds := lostChannel(3)
	if err := ds[0].Complete(t.Context()); err != nil {
		t.Fatal(err)
	}
	_ = s.acks.due(time.Now()) // fails, and forgets nothing
	s.end(transport.ErrLeaseLost)
	memory := &s.receiver.of.redelivered
	if !memory.takeCompleted("orders", &ds[0].message) || memory.takeCompleted("orders", &ds[0].message) {
		t.Error("the completed message is to be recognised, once")
	}
	if memory.takeCompleted("orders", &ds[1].message) {
		t.Error("a message that was not completed is recognised as completed")
	}
	if err := ds[1].Complete(t.Context()); !errors.Is(err, transport.ErrLeaseLost) {
		t.Error(err)
	}
	if memory.takeCompleted("orders", &ds[1].message) {
		t.Error("a message that came again before it was completed is recognised as completed")
	}
	if err := ds[2].Complete(t.Context()); !errors.Is(err, transport.ErrLeaseLost) {
		t.Error(err)
	}
	copied := ds[2].message
	copied.Headers.Set(header.Retries, "1")
	if memory.takeCompleted("orders", &copied) || memory.takeCompleted("elsewhere", &ds[2].message) || !memory.takeCompleted("orders", &ds[2].message) {
		t.Error("a copy is taken for the message")
	}
}

// A message that is completed before it is handled is not handled where that fails.
func TestAMessageNotCompletedFirstIsNotRemembered(t *testing.T) {
	s, ds := lostChannel(3)
	s.receiver.completesFirst = true
	if err := ds[0].Complete(t.Context()); err != nil { // and so it is handled
		t.Fatal(err)
	}
	s.acks.window = 4 // now an acknowledgement is sent at once
	if err := ds[1].Complete(t.Context()); !errors.Is(err, transport.ErrLeaseLost) {
		t.Error(err)
	}
	s.end(transport.ErrLeaseLost)
	if err := ds[2].Complete(t.Context()); !errors.Is(err, transport.ErrLeaseLost) {
		t.Error(err)
	}
	memory := &s.receiver.of.redelivered
	for i, want := range []bool{true, false, false} {
		if memory.takeCompleted("orders", &ds[i].message) != want {
			t.Errorf("%s: taken for done is %t", ds[i].message.ID, !want)
		}
	}
}

func TestTheMemoryOfLostDeliveriesIsBounded(t *testing.T) {
	s, ds := lostChannel(2 * maxRedelivered)
	s.end(transport.ErrLeaseLost)
	memory := &s.receiver.of.redelivered
	if len(memory.completed) != maxRedelivered || len(memory.order) != maxRedelivered {
		t.Errorf("%d and %d are remembered", len(memory.completed), len(memory.order))
	}
	for _, d := range ds {
		_ = d.Complete(t.Context())
	}
	if memory.takeCompleted("orders", &ds[0].message) || !memory.takeCompleted("orders", &ds[len(ds)-1].message) {
		t.Error("the newest are to be remembered")
	}
}

// late is a broker that has a function called with the first acknowledgement.
type late struct {
	*ledger
	first func()
}

func (l *late) Ack(tag uint64, multiple bool) error {
	if l.first != nil {
		l.first()
		l.first = nil
	}
	return l.ledger.Ack(tag, multiple)
}

// Each message whose Complete succeeded is acknowledged, also at the moment at which the connection
// is closed.
func TestNoAckIsLostWhenTheConnectionIsClosed(t *testing.T) {
	s, ds := lostChannel(2)
	l := &late{ledger: &ledger{t: t, unacked: map[uint64]bool{1: true, 2: true}}}
	s.acks.ch = l
	if err := ds[0].Complete(t.Context()); err != nil {
		t.Fatal(err)
	}
	var other sync.WaitGroup
	var err error
	l.first = func() { // the lock passes to a goroutine that has waited for more than a millisecond
		other.Go(func() { err = ds[1].Complete(context.Background()) })
		<-time.After(5 * time.Millisecond)
	}
	s.finish()
	other.Wait()
	if err == nil && l.unacked[2] {
		t.Error("a message was completed and is not acknowledged")
	}
	if l.unacked[1] {
		t.Error("a pending acknowledgement was not written")
	}
}

func TestAHeldDeliveryIsOutOfTheWindow(t *testing.T) {
	s, ds := lostChannel(3)
	s.receiver.ready = make(chan struct{}, 1)
	s.full = true
	s.receiver.of.maxHold = time.Hour
	ds[0].arrivedAt = time.Now()
	ds[0].Hold()
	if until := ds[0].Hold(); !until.Equal(ds[0].arrivedAt.Add(time.Hour)) {
		t.Errorf("held until %v, want an hour after the arrival", until)
	}
	if n := s.inHandlers(); n != 2 || s.full || s.prefetch.held != 1 {
		t.Errorf("%d deliveries count, full is %v, %d are held; want 2, false, 1", n, s.full, s.prefetch.held)
	}
	s.acks.ch = &ledger{t: t, unacked: map[uint64]bool{1: true, 2: true}}
	for _, d := range ds[:2] {
		if err := d.Complete(t.Context()); err != nil || d.Lost() {
			t.Errorf("%v, lost: %v", err, d.Lost())
		}
		d.Hold()
	}
	if n := s.inHandlers(); n != 1 || s.prefetch.held != 0 {
		t.Errorf("%d deliveries count, %d are held; want 1, 0", n, s.prefetch.held)
	}
	if ds[2].Lost() {
		t.Error("a delivery is lost before its channel")
	}
	s.end(transport.ErrLeaseLost)
	if !ds[2].Lost() {
		t.Error("a delivery is not lost with its channel")
	}
	ds[2].Hold()
	if s.prefetch.held != 0 {
		t.Error("a lost delivery is held")
	}
}

package baddays_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// serviceBusLargeFailure fails messages that the service has just had room for: in the queue, and
// among the dead letters before ordinary ones.
func serviceBusLargeFailure(t *testing.T) outcome {
	b := newBus(t, brokertest.OwnServiceBus(t))
	sizes := []int{241 << 10, 250 << 10, 255 << 10, 261_500}
	letters := []int{250 << 10, 0, 0, 0}
	for i, size := range letters {
		b.dispatch(b.job(100+i, size))
		b.deadLetter()
	}
	for i, size := range sizes {
		b.dispatch(b.job(i, size))
	}
	b.run(func(cfg *endpoint.Config) {
		cfg.Recoverability = recoverability.Config{Immediate: 1, Delayed: recoverability.None}
	}, func(context.Context, *endpoint.Session, busJob) error {
		return errors.New("it fails each time")
	})
	before := b.ns.Control.State().Counts.Deliveries
	took := b.await("all are in the error queue", func(queues map[string]brokertest.ServiceBusQueue) bool {
		return queues["error"].Active == len(sizes)+len(letters) && queues["work"].Active+queues["work"].DeadLetters == 0
	})
	deliveries := b.ns.Control.State().Counts.Deliveries - before
	if most := 4 * (len(sizes) + len(letters)); deliveries > most {
		t.Errorf("%d deliveries, want at most %d", deliveries, most)
	}
	return outcome{
		message: fmt.Sprintf("in the error queue, %d deliveries in all", deliveries), neighbours: "the dead letters behind it are in the error queue", normal: took,
	}
}

// deadLetter has the service dead-letter the next message.
func (b *bus) deadLetter() {
	b.t.Helper()
	r, err := b.conn.OpenReceiver(b.ctx(), transport.ReceiverOptions{Queue: "work"})
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() {
		if err := r.Close(); err != nil {
			b.t.Error(err)
		}
	}()
	ds, err := r.Receive(b.ctx(), 1)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := ds[0].(transport.DeadLetterer).DeadLetter(b.ctx(), "by the test"); err != nil {
		b.t.Fatal(err)
	}
}

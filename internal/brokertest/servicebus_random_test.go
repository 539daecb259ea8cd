package brokertest_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

// outcomes records what happened to the messages of a queue.
type outcomes struct {
	*bus
	total int
	stop  context.CancelFunc

	mu    sync.Mutex // guards the fields below
	ended map[string]string
	dead  int
}

// end records that the broker has confirmed the end of a message.
func (f *outcomes) end(m *azservicebus.ReceivedMessage, how string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	id := string(m.Body)
	if before := f.ended[id]; before != "" {
		f.Errorf("message %s: %s, after it had been %s", id, how, before)
	}
	f.ended[id] = how
	if how == "buried" {
		f.dead++
	}
	if len(f.ended) == f.total {
		f.stop()
	}
}

// handle settles a message in a random way, and records the broker's answer.
func (f *outcomes) handle(r *azservicebus.Receiver, m *azservicebus.ReceivedMessage, dice int) {
	f.mu.Lock()
	before := f.ended[string(m.Body)]
	f.mu.Unlock()
	if before != "" {
		f.Errorf("message %s was delivered after it had been %s", m.Body, before)
	}
	if dice%2 == 0 {
		m = onManagement(m)
	}
	switch {
	case dice < 50:
		if r.CompleteMessage(f.ctx, m, nil) == nil {
			f.end(m, "completed")
		}
	case dice < 65:
		_ = r.AbandonMessage(f.ctx, m, nil) // if its lock is lost it is delivered again, too
	case dice < 75:
		if r.DeadLetterMessage(f.ctx, m, nil) == nil {
			f.end(m, "buried")
		}
	case dice < 85:
		f.park(r, m)
	case dice < 95:
		if r.RenewMessageLock(f.ctx, m, nil) == nil && r.CompleteMessage(f.ctx, m, nil) == nil {
			f.end(m, "completed")
		}
	default: // its lock expires
	}
}

// park defers a message and fetches it again.
func (f *outcomes) park(r *azservicebus.Receiver, m *azservicebus.ReceivedMessage) {
	if r.DeferMessage(f.ctx, m, nil) != nil {
		return
	}
	for f.ctx.Err() == nil { // it is not found while the lock of the last round lasts
		found, err := r.ReceiveDeferredMessages(f.ctx, []int64{of(m.SequenceNumber)}, nil)
		if err == nil && r.CompleteMessage(f.ctx, found[0], nil) == nil {
			f.end(m, "completed")
			return
		}
	}
}

func TestChaosServiceBusEndsEachMessageOnce(t *testing.T) {
	if brokertest.Fault(t) {
		endEachOnce(t, 3000)
	} else {
		endEachOnce(t, 300)
	}
}

// It takes some seconds: some locks expire, and a lock lasts a second at least.
func TestServiceBusEndsEachMessageOnce(t *testing.T) { endEachOnce(t, 60) }

// endEachOnce settles messages in random ways, each until it has come to an end.
func endEachOnce(t *testing.T, messages int) {
	t.Helper()
	b := newBus(t)
	q := b.queue(admin.QueueProperties{LockDuration: b.brief(), MaxDeliveryCount: to.Ptr[int32](10_000)})
	ctx, stop := context.WithCancel(b.ctx)
	f := &outcomes{bus: b, total: messages, stop: stop, ended: make(map[string]string)}
	var working sync.WaitGroup
	for worker := range uint64(4) {
		r, random := b.receiver(q), rand.New(rand.NewPCG(worker, 42))
		working.Go(func() {
			for ctx.Err() == nil {
				messages, err := r.ReceiveMessages(ctx, 10, nil)
				if err != nil && ctx.Err() == nil {
					t.Errorf("receive: %v", err)
					return
				}
				for _, m := range messages {
					f.handle(r, m, random.IntN(100))
				}
			}
		})
	}
	for i := range f.total {
		b.send(q, text(fmt.Sprint(i)))
	}
	working.Wait()
	if len(f.ended) != f.total {
		t.Fatalf("%d of %d messages came to an end", len(f.ended), f.total)
	}
	found, err := b.admin.GetQueueRuntimeProperties(b.ctx, q, nil)
	b.must(err)
	b.equal(found.DeadLetterMessageCount, int32(f.dead)) //nolint:gosec // at most some thousands
	b.equal(found.TotalMessageCount, int64(f.dead))
}

package endpoint_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// A start is slow while the first messages have been delivered before, and no other start is.
func TestAStartIsSlowOnlyForRedeliveries(t *testing.T) {
	for _, test := range []struct {
		name   string
		before []int // how often the messages in the queue have been delivered, in their order
		most   map[time.Duration]int32
	}{
		{"clean", []int{0, 2, 2, 2, 2, 2, 2, 2, 2}, map[time.Duration]int32{500 * time.Millisecond: 8}},
		{"never clean", []int{2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2}, map[time.Duration]int32{4500 * time.Millisecond: 1, 5500 * time.Millisecond: 8}},
		{"never clean, once", []int{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, map[time.Duration]int32{4500 * time.Millisecond: 1, 5500 * time.Millisecond: 8}},
		{"clean in the end", []int{2, 2, 0, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2}, map[time.Duration]int32{2500 * time.Millisecond: 1, 3500 * time.Millisecond: 8}},
	} {
		t.Run(test.name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				var running, most atomic.Int32
				cfg := harness.Sales(broker, endpoint.Handle(func(context.Context, *endpoint.Session, harness.PlaceOrder) error {
					n := running.Add(1)
					defer running.Add(-1)
					for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
					}
					time.Sleep(time.Second)
					return nil
				}))
				cfg.Concurrency = 8
				for i, n := range test.before {
					delivered(t, broker, "sales", wire(fmt.Sprint("m-", i)), n)
				}
				harness.Start(t, cfg)
				began := time.Now()
				for _, at := range []time.Duration{500 * time.Millisecond, 2500 * time.Millisecond, 3500 * time.Millisecond, 4500 * time.Millisecond, 5500 * time.Millisecond} {
					time.Sleep(at - time.Since(began))
					synctest.Wait()
					if want, ok := test.most[at]; ok && most.Load() != want {
						t.Errorf("after %v at most %d were handled at once, want %d", at, most.Load(), want)
					}
				}
			})
		})
	}
}

// A slow start ends also if no handler receives a message: the copies of held messages move to a
// slow error queue, several at once.
func TestASlowStartEndsWithoutAHandler(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		b, cfg := moodyErrors(broker, new(orders))
		b.set("error", slowMood)
		broker.CreateQueues("sales", "error")
		const copies = 30
		for i := range copies {
			var h header.Map
			h.Set(header.HoldfastFaultDecided, "sales")
			if err := broker.Put("sales", &transport.Message{ID: fmt.Sprint("m-", i), Headers: h}); err != nil {
				t.Fatal(err)
			}
		}
		harness.Start(t, cfg)
		pass(4 * time.Second)
		if n := len(broker.Messages("error")); n > 2 {
			t.Errorf("%d messages moved in the first 4 s: the start is not slow", n)
		}
		pass(11 * time.Second)
		if n := len(broker.Messages("error")); n != copies {
			t.Errorf("%d of %d messages moved in 15 s", n, copies)
		}
	})
}

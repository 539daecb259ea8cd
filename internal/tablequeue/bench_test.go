package tablequeue

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

// endless is a store whose queue never runs empty and that forgets what is flushed.
type endless struct {
	*fake
	mu      sync.Mutex
	next    int64
	headers string
	flushes int
	units   int
}

func (e *endless) parts() Store {
	s := e.fake.parts()
	s.Queues = e
	return s
}

func (e *endless) Claim(_ context.Context, c Claim, into []Claimed) ([]Claimed, time.Duration, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for range c.Limit {
		e.next++
		into = append(into, Claimed{Seq: e.next, ID: "id", Headers: e.headers, Count: 1})
	}
	return into, 0, nil
}

func (e *endless) Flush(_ context.Context, units []*Unit) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.flushes++
	e.units += len(units)
	return nil
}

// BenchmarkLoop is what the engine costs for a message received, one sent and the first
// completed, beside the database.
func BenchmarkLoop(b *testing.B) {
	for _, workers := range []int{1, 32, 128} {
		b.Run(fmt.Sprintf("c%d", workers), func(b *testing.B) {
			m := &transport.Message{ID: "id", Body: make([]byte, 200)}
			for i := range 14 {
				m.Headers.Set(fmt.Sprintf("NServiceBus.Header.%d", i), "a value of some 30 characters.")
			}
			m.Headers.Set(header.MessageID, "id")
			e := &endless{fake: newFake("in", "out"), headers: string(m.Headers.AppendJSON(nil))}
			c := open(b, e)
			r := receiverOf(b, c, "in")
			work := make(chan transport.Delivery, workers)
			var handlers sync.WaitGroup
			b.ReportAllocs()
			b.ResetTimer()
			for range workers {
				handlers.Go(func() {
					ops := []transport.Operation{{Queue: "out", Message: m}}
					for d := range work {
						if err := d.(transport.Completer).CompleteWith(b.Context(), ops); err != nil {
							b.Error(err)
						}
					}
				})
			}
			for n := 0; n < b.N; {
				ds, err := r.Receive(b.Context(), min(100, b.N-n))
				if err != nil {
					b.Fatal(err)
				}
				for _, d := range ds {
					work <- d
				}
				n += len(ds)
			}
			close(work)
			handlers.Wait()
			b.ReportMetric(float64(e.units)/float64(e.flushes), "units/flush")
		})
	}
}

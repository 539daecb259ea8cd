package endpoint_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

type blob struct{ Data []byte }

func TestMaxBufferedBytesBoundsWhatIsReceived(t *testing.T) {
	for _, test := range []struct {
		name    string
		without inmemory.Capability
	}{
		{"a driver that bounds by size", 0},
		{"a driver that bounds by number", inmemory.ByteReceiver},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const messages, size, bound = 40, 750 << 10, 8 << 20 // 1 MiB on the wire, in base64
				broker := &inmemory.Transport{Without: test.without}
				broker.CreateQueues("sales", "error", "sales.quarantine")
				free := make(chan struct{})
				var handled atomic.Int64
				e, err := endpoint.New(endpoint.Config{
					Name: "sales", Transport: broker, Concurrency: 20, MaxBufferedBytes: bound,
					Messages: []endpoint.Message{endpoint.Command[blob]("Blob")},
					Handlers: []endpoint.Handler{endpoint.Handle(func(context.Context, *endpoint.Session, blob) error {
						<-free
						handled.Add(1)
						return nil
					})},
				})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- e.Run(ctx) }()
				if err := e.WaitReady(ctx); err != nil {
					t.Fatal(err)
				}
				for range messages {
					if err := e.SendLocal(t.Context(), blob{make([]byte, size)}); err != nil {
						t.Fatal(err)
					}
				}
				synctest.Wait()
				if got := e.Health().Queues[0].Bytes; got < bound/2 || got > bound {
					t.Errorf("%d bytes are held, want between half of the bound of %d and all", got, bound)
				}
				close(free)
				synctest.Wait()
				if n := handled.Load(); n != messages {
					t.Errorf("%d of %d messages were handled", n, messages)
				}
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

package pump

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// endless is a receiver that always has as many messages as asked for.
type endless struct{ ds []transport.Delivery }

func newEndless() *endless {
	ds := make([]transport.Delivery, 10000)
	for i := range ds {
		ds[i] = new(delivery)
	}
	return &endless{ds}
}

func (e *endless) Receive(ctx context.Context, limit int) ([]transport.Delivery, error) {
	return e.ds[:limit], ctx.Err()
}
func (e *endless) Window(int)   {}
func (e *endless) Close() error { return nil }

// renewed is endless with leases.
type renewed struct{ *endless }

func (renewed) Renew(_ context.Context, ds []transport.Delivery) []error {
	return make([]error, len(ds))
}

// BenchmarkPump measures the cost of a message with a handler that does nothing.
func BenchmarkPump(b *testing.B) {
	free := func(_ context.Context, _ transport.Delivery, slot *Slot) { slot.Free() }
	yielding := func(_ context.Context, _ transport.Delivery, slot *Slot) { pause(); slot.Free(); pause() }
	for _, h := range []struct {
		name   string
		handle func(context.Context, transport.Delivery, *Slot)
	}{{"nothing", free}, {"waits", yielding}} {
		for _, c := range []int{1, 32, 100} {
			e := newEndless()
			run := func(name string, r transport.Receiver, l transport.Limits) {
				b.Run(fmt.Sprintf("%s/%s/c%d", h.name, name, c), func(b *testing.B) {
					benchmark(b, Config{Receiver: r, Limits: l, Concurrency: c, Handle: h.handle})
				})
			}
			run("prefetch", e, transport.Limits{Prefetch: true})
			run("buffer", e, transport.Limits{})
			run("lease", renewed{e}, transport.Limits{Lease: time.Minute})
		}
	}
}

// pause lets other goroutines run, like a handler that waits for an answer.
func pause() {
	c := make(chan struct{})
	go close(c)
	<-c
}

func benchmark(b *testing.B, cfg Config) {
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	var n atomic.Int64
	handle := cfg.Handle
	cfg.Handle = func(ctx context.Context, d transport.Delivery, slot *Slot) {
		handle(ctx, d, slot)
		if n.Add(1) == int64(b.N) {
			cancel()
		}
	}
	cfg.StopTimeout = -1
	b.ReportAllocs()
	b.ResetTimer()
	New(cfg).Run(ctx)
	b.StopTimer()
}

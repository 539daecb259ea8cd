package inmemory_test

import (
	"fmt"
	"testing"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// A message's way through the driver: dispatched, received and completed, with the
// headers of an ordinary message.
func BenchmarkLoop(b *testing.B) {
	for _, batch := range []int{1, 32} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) { loop(b, &inmemory.Transport{}, batch) })
	}
}

func BenchmarkLoopLeased(b *testing.B) { loop(b, &inmemory.Transport{Lease: 1 << 40}, 32) }

func loop(b *testing.B, t *inmemory.Transport, batch int) {
	conn := open(b, t, "orders")
	r := receiver(b, conn, "orders")
	ops := make([]transport.Operation, batch)
	for i := range ops {
		ops[i] = to("orders", "3f1ad4ad-0e5b-4c0b-a9ab-0123456789ab")
		for n := range 12 {
			ops[i].Message.Headers.Set(fmt.Sprint("NServiceBus.Header", n), "a value of common length")
		}
		ops[i].Message.Headers.Set(header.ContentType, "application/json")
		ops[i].Message.Body = make([]byte, 200)
	}
	ctx := b.Context()
	b.ReportAllocs()
	for n := 0; n < b.N; n += batch {
		if _, err := conn.Dispatch(ctx, ops); err != nil {
			b.Fatal(err)
		}
		ds, err := r.Receive(ctx, batch)
		if err != nil {
			b.Fatal(err)
		}
		for _, d := range ds {
			if err := d.Complete(ctx); err != nil {
				b.Fatal(err)
			}
		}
	}
}

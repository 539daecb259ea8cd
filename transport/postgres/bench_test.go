package postgres

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

// The loop of an endpoint without the endpoint: receive one, send one, complete.
// go test -bench Loop -benchtime 50000x ./transport/postgres

func BenchmarkLoop(b *testing.B) {
	for _, c := range []int{1, 8, 32, 100} {
		b.Run(fmt.Sprintf("c%d", c), func(b *testing.B) {
			bench(b, c, func(ctx context.Context, d transport.Delivery, out []transport.Operation) error {
				return d.(transport.Completer).CompleteWith(ctx, out)
			})
		})
	}
}

func BenchmarkAtomic(b *testing.B) {
	for _, c := range []int{1, 8, 32} {
		b.Run(fmt.Sprintf("c%d", c), func(b *testing.B) {
			bench(b, c, atomically)
		})
	}
}

func atomically(ctx context.Context, d transport.Delivery, out []transport.Operation) error {
	tx, err := d.(transport.Transactor).Begin(ctx)
	if err != nil {
		return err
	}
	user, err := Tx(ctx, session{tx})
	if err != nil {
		return err
	}
	if _, err := user.Exec(ctx, `UPDATE biz SET n = n + 1 WHERE id = $1`, d.Message().Body[0]); err != nil {
		return err
	}
	return tx.Complete(ctx, out)
}

// session is what an endpoint's session is to [Tx].
type session struct{ tx transport.Tx }

func (s session) Tx(context.Context) (transport.HandlerTx, error) {
	return transport.NewHandlerTx(s.tx), nil
}

func bench(b *testing.B, workers int, handle func(context.Context, transport.Delivery, []transport.Operation) error) {
	w := newWorld(b, "input", "output")
	w.exec(`CREATE TABLE %sbiz (id int PRIMARY KEY, n bigint NOT NULL DEFAULT 0) WITH (fillfactor = 50)`)
	w.exec(`INSERT INTO %sbiz (id) SELECT generate_series(0, 999)`)
	c := w.openAs(Transport{URL: testURL() + "&search_path=" + w.schema})
	fill(b, c, b.N)
	w.exec(`VACUUM ANALYZE %sinput`)
	w.exec(`CHECKPOINT`)
	b.ReportAllocs()
	b.ResetTimer()
	pump(b, c, workers, handle)
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
	if in, out := w.count("input"), w.count("output"); in != 0 || out != b.N {
		b.Errorf("%d left in the input, %d in the output, want 0 and %d", in, out, b.N)
	}
}

// BenchmarkUniqueID measures the cost of the unique index on ids, which shared queues have: it
// sends a hundred messages at a time.
func BenchmarkUniqueID(b *testing.B) {
	for _, shares := range []bool{false, true} {
		b.Run(fmt.Sprintf("index=%t", shares), func(b *testing.B) {
			w := newWorld(b)
			c := w.open()
			plan := transport.Plan{Queues: []transport.Queue{{Name: "copies", Shared: shares}}}
			ok(b, c.(transport.Installer).Install(b.Context(), plan))
			ops := make([]transport.Operation, 100)
			for i := range ops {
				ops[i] = to("copies", benchMessage(i))
			}
			w.exec(`CHECKPOINT`)
			b.ResetTimer()
			for range b.N / len(ops) {
				send(b, c, ops...)
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
			b.StopTimer()
			var bytes int64
			ok(b, w.sql.QueryRow(b.Context(), `SELECT pg_indexes_size(to_regclass($1))`, quote(w.schema, "copies")).Scan(&bytes))
			b.ReportMetric(float64(bytes)/float64(b.N), "index-B/msg")
		})
	}
}

// benchMessage has 200 bytes and 8 headers, as in the raw programs it is compared with.
func benchMessage(n int) *transport.Message {
	m := &transport.Message{ID: fmt.Sprintf("00000000-0000-0000-0000-%012d", n), Body: make([]byte, 200)}
	m.Body[0] = byte(n)
	m.Headers.Reserve(8)
	for i := range 8 {
		m.Headers.Set(fmt.Sprintf("Holdfast.Bench.%d", i), "the value of a header, of 32 byte")
	}
	m.Headers.SetDefault(header.MessageID, m.ID)
	return m
}

func fill(b *testing.B, c transport.Conn, n int) {
	for n > 0 {
		ops := make([]transport.Operation, min(n, 1000))
		for i := range ops {
			ops[i] = to("input", benchMessage(i))
		}
		send(b, c, ops...)
		n -= len(ops)
	}
}

// pump is what internal/pump does, in short: a slot is free again when the handler is
// done, and four times as many settles may be under way.
func pump(b *testing.B, c transport.Conn, workers int, handle func(context.Context, transport.Delivery, []transport.Operation) error) {
	ctx, stop := context.WithCancel(b.Context())
	defer stop()
	work := make(chan transport.Delivery, workers)
	var receivers, handlers sync.WaitGroup
	var left sync.WaitGroup
	left.Add(b.N)
	for range 2 {
		r := receiver(b, c, "input")
		receivers.Go(func() {
			for {
				ds, err := r.Receive(ctx, max(100, 2*workers))
				if err != nil {
					return
				}
				for _, d := range ds {
					work <- d
				}
			}
		})
	}
	for range 4 * workers {
		handlers.Go(func() {
			for d := range work {
				out := []transport.Operation{to("output", benchMessage(int(d.Message().Body[0])))}
				if err := handle(ctx, d, out); err != nil {
					b.Error(err)
				}
				left.Done()
			}
		})
	}
	left.Wait()
	stop()
	receivers.Wait()
	close(work)
	handlers.Wait()
}

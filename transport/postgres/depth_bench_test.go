package postgres

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/transport"
)

// Time per message in a queue that always holds so many: it must not grow with them, neither with
// the statistics of the full queue nor with those of the empty one that it was before. go test -run
// none -bench Depth -benchtime 20000x ./transport/postgres
func BenchmarkDepth(b *testing.B) {
	for _, statistics := range []string{"full", "empty"} {
		for _, depth := range []int{1000, 100_000, 1_000_000} {
			b.Run(fmt.Sprintf("statistics=%s/%d", statistics, depth), func(b *testing.B) {
				w := newWorld(b, "input")
				w.exec(`ALTER TABLE %sinput SET (autovacuum_enabled = off)`)
				w.exec(fillInput, 10_000)
				w.exec(`DELETE FROM %sinput`)
				w.exec(`VACUUM %sinput`)
				w.exec(fillInput, depth)
				if statistics == "full" {
					w.exec(`VACUUM ANALYZE %sinput`)
				}
				turnOver(b, w.open())
			})
		}
	}
}

const fillInput = `INSERT INTO %sinput (headers, body) SELECT '{"Holdfast.Bench":"the value of a header"}', decode(repeat('00', 200), 'hex')
FROM generate_series(1, $1)`

// The same while no other transaction holds a snapshot, and while one holds a snapshot from before
// so many messages have passed: no dead row is ever cleared away then. go test -run none -bench
// Snapshot -benchtime 50000x ./transport/postgres
func BenchmarkSnapshot(b *testing.B) {
	for _, passed := range []int{-1, 0, 1_000_000} {
		name := "none"
		if passed >= 0 {
			name = fmt.Sprintf("held=%d", passed)
		}
		b.Run(name, func(b *testing.B) {
			w := newWorld(b, "input")
			c := w.open()
			if passed >= 0 {
				w.holdSnapshot()
				w.pass(passed)
			}
			fill(b, c, 1000)
			turnOver(b, c)
		})
	}
}

// holdSnapshot has a transaction keep a snapshot until the test ends.
func (w *world) holdSnapshot() {
	w.t.Helper()
	sql, err := pgx.Connect(w.t.Context(), testURL())
	ok(w.t, err)
	w.t.Cleanup(func() { _ = sql.Close(context.Background()) })
	_, err = sql.Exec(w.t.Context(), `BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1`)
	ok(w.t, err)
}

// pass leaves what n messages leave that were received and completed an hour ago.
func (w *world) pass(n int) {
	w.t.Helper()
	w.exec(`INSERT INTO %sinput (headers, visible_at) SELECT '{}', now() - interval '1 hour' FROM generate_series(1, $1)`, n)
	w.exec(`DELETE FROM %sinput`)
}

// turnOver receives b.N messages and replaces each by another.
func turnOver(b *testing.B, c transport.Conn) {
	r := receiver(b, c, "input")
	b.ResetTimer()
	for left := b.N; left > 0; {
		ds, err := r.Receive(b.Context(), min(100, left))
		ok(b, err)
		var settling sync.WaitGroup
		for _, d := range ds {
			settling.Go(func() {
				if err := d.(transport.Completer).CompleteWith(b.Context(), []transport.Operation{to("input", benchMessage(0))}); err != nil {
					b.Error(err)
				}
			})
		}
		settling.Wait()
		left -= len(ds)
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}

// How long a message takes that one process sends and another, which has been idle, receives.
// go test -run none -bench IdleLatency -benchtime 50x ./transport/postgres
func BenchmarkIdleLatency(b *testing.B) {
	w := newWorld(b, "input")
	sender, r := w.open(), receiver(b, w.open(), "input")
	took := make([]time.Duration, 0, b.N)
	sent := make(chan time.Time, 1)
	for range b.N {
		var sending sync.WaitGroup
		sending.Go(func() {
			w.exec(`SELECT pg_sleep(1 + random())`) // the receiver is idle
			sent <- time.Now()
			send(b, sender, to("input", benchMessage(0)))
		})
		d := receive(b, r, 1)[0]
		took = append(took, time.Since(<-sent))
		sending.Wait()
		ok(b, d.Complete(b.Context()))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "ms-median")
	b.ReportMetric(float64(took[len(took)-1].Microseconds())/1000, "ms-max")
}

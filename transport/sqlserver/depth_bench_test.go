package sqlserver

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/transport"
)

// Time per message in a queue that always holds so many: it must not grow with them, neither with the statistics
// of the full queue nor with those of the empty one that it was before.
// go test -run none -bench Depth -benchtime 20000x ./transport/sqlserver
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

// The same while another transaction holds a snapshot from before, so that no dead row is ever
// cleared away, and while none does.
// go test -run none -bench Snapshot -benchtime 50000x ./transport/sqlserver
func BenchmarkSnapshot(b *testing.B) {
	for _, held := range []bool{false, true} {
		b.Run(fmt.Sprintf("held=%t", held), func(b *testing.B) {
			w := newWorld(b, "input")
			c := w.open()
			fill(b, c, 1000)
			if held {
				tx, err := w.sql.BeginTx(b.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
				ok(b, err)
				defer func() { ok(b, tx.Rollback(b.Context())) }()
				_, err = tx.Exec(b.Context(), "SELECT 1") // takes the snapshot
				ok(b, err)
			}
			turnOver(b, c)
		})
	}
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
// go test -run none -bench IdleLatency -benchtime 50x ./transport/sqlserver
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

package baddays_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/endpoint"
)

// BenchmarkPostgresDestinations measures the messages for one queue, in seconds of the same minute,
// beside messages for another queue that is locked or missing.
func BenchmarkPostgresDestinations(b *testing.B) {
	const window = 5 * time.Second
	for _, mode := range []endpoint.TransactionMode{endpoint.ReceiveOnly, endpoint.SendsAtomicWithReceive} {
		b.Run("locked/"+mode.String(), func(b *testing.B) {
			r := startRelays(b, mode, "sink", "other")
			stop := r.feed(5, "other")
			r.rate(time.Second)
			before := r.rate(window)
			tx, err := r.db.Begin(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			if _, err := tx.Exec(b.Context(), `LOCK TABLE other IN ACCESS EXCLUSIVE MODE`); err != nil {
				b.Fatal(err)
			}
			locked := r.rate(time.Duration(size(10, 45)) * time.Second)
			if err := tx.Commit(b.Context()); err != nil {
				b.Fatal(err)
			}
			began := time.Now()
			sent := stop()
			r.wait("all are sent", time.Minute, func() bool { return r.rows("other") == sent["other"] })
			b.ReportMetric(time.Since(began).Seconds(), "s-until-normal")
			b.ReportMetric(before, "undisturbed/s")
			b.ReportMetric(locked, "locked/s")
			b.ReportMetric(locked/before, "ratio")
		})
	}
	for _, percent := range []int{1, 5} {
		b.Run(fmt.Sprintf("missing/%d%%", percent), func(b *testing.B) {
			r := startRelays(b, endpoint.ReceiveOnly, "sink")
			rates := map[int]float64{}
			for range 2 { // in turns
				for _, bad := range []int{0, percent} {
					stop := r.feed(bad, "missing")
					r.rate(time.Second)
					rates[bad] += r.rate(window)
					stop()
				}
			}
			undisturbed := rates[0] / 2 * float64(100-percent) / 100 // of the messages for that queue
			b.ReportMetric(undisturbed, "undisturbed/s")
			b.ReportMetric(rates[percent]/2, "missing/s")
			b.ReportMetric(rates[percent]/2/undisturbed, "ratio")
		})
	}
}

// BenchmarkPostgresInTx compares transactions of a program that send one message with ones that
// insert the row by hand.
func BenchmarkPostgresInTx(b *testing.B) {
	r := startRelays(b, endpoint.ReceiveOnly, "sink")
	rate := func(write func(ctx context.Context, tx pgx.Tx) error) float64 {
		ctx, cancel := context.WithTimeout(b.Context(), 5*time.Second)
		defer cancel()
		var mu sync.Mutex
		n := 0
		var writers sync.WaitGroup
		began := time.Now()
		for range 32 {
			writers.Go(func() {
				conn, err := pgx.Connect(b.Context(), r.url)
				if err != nil {
					b.Error(err)
					return
				}
				defer func() { _ = conn.Close(b.Context()) }()
				for ctx.Err() == nil {
					if err := pgx.BeginFunc(b.Context(), conn, func(tx pgx.Tx) error { return write(b.Context(), tx) }); err != nil {
						b.Error(err)
						return
					}
					mu.Lock()
					n++
					mu.Unlock()
				}
			})
		}
		writers.Wait()
		return float64(n) / time.Since(began).Seconds()
	}
	hand := rate(func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO sink (id, headers, body) VALUES ('a', '{}', 'x')`)
		return err
	})
	sent := rate(func(ctx context.Context, tx pgx.Tx) error {
		return r.e.Send(ctx, relayed{1}, endpoint.To("sink"), endpoint.In(tx))
	})
	b.ReportMetric(hand, "by-hand/s")
	b.ReportMetric(sent, "in-tx/s")
	b.ReportMetric(sent/hand, "ratio")
}

package postgres

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/transport"
)

// Store, a transaction of BeginStore with one UPDATE, and the same rows by hand, each from 32
// goroutines. go test -run none -bench Stored -benchtime 20000x ./transport/postgres
func BenchmarkStored(b *testing.B) {
	const writers = 32
	for name, store := range map[string]func(w *world, c transport.OutboxStore, pool *pgxpool.Pool) func(context.Context, int, transport.HandledKey) error{
		"store": func(_ *world, c transport.OutboxStore, _ *pgxpool.Pool) func(context.Context, int, transport.HandledKey) error {
			return func(ctx context.Context, n int, key transport.HandledKey) error {
				return c.Store(ctx, benchEntry(n, &key))
			}
		},
		"transaction": func(_ *world, c transport.OutboxStore, _ *pgxpool.Pool) func(context.Context, int, transport.HandledKey) error {
			return func(ctx context.Context, n int, key transport.HandledKey) error {
				tx, err := c.BeginStore(ctx, benchEntry(n, &key))
				if err != nil {
					return err
				}
				user, err := Tx(ctx, session{tx})
				if err != nil {
					return err
				}
				if _, err := user.Exec(ctx, `UPDATE biz SET n = n + 1 WHERE id = $1`, n%1000); err != nil {
					return err
				}
				return tx.Complete(ctx, nil)
			}
		},
		"transaction by hand": func(_ *world, _ transport.OutboxStore, pool *pgxpool.Pool) func(context.Context, int, transport.HandledKey) error {
			return func(ctx context.Context, n int, key transport.HandledKey) error { return byHand(ctx, pool, n, key) }
		},
	} {
		b.Run(fmt.Sprintf("%s/c%d", name, writers), func(b *testing.B) {
			w := newInbox(b)
			install(b, w.open(), "output")
			w.exec(`CREATE TABLE %sbiz (id int PRIMARY KEY, n bigint NOT NULL DEFAULT 0) WITH (fillfactor = 50)`)
			w.exec(`INSERT INTO %sbiz (id) SELECT generate_series(0, 999)`)
			url := testURL() + "&search_path=" + w.schema
			pool := users(b, url+fmt.Sprintf("&pool_max_conns=%d", writers))
			do := store(w, w.openAs(Transport{URL: url}).(transport.OutboxStore), pool)
			w.exec(`CHECKPOINT`)
			var next atomic.Int64
			var all sync.WaitGroup
			b.ReportAllocs()
			b.ResetTimer()
			for range writers {
				all.Go(func() {
					for n := int(next.Add(1)); n <= b.N; n = int(next.Add(1)) {
						if err := do(b.Context(), n, newKey(time.Now())); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
			if n, keys := w.count("output"), w.count("in.handled"); n != b.N || keys != b.N {
				b.Errorf("%d messages and %d keys, want %d", n, keys, b.N)
			}
		})
	}
}

func benchEntry(n int, key *transport.HandledKey) transport.OutboxEntry {
	return transport.OutboxEntry{Inbox: "in.handled", Key: key, Ops: []transport.Operation{to("output", benchMessage(n))}}
}

// byHand is what a program writes itself: in one round trip the begin and its own write, in a
// second one its rows for the inbox and the outbox, and the commit.
func byHand(ctx context.Context, pool *pgxpool.Pool, n int, key transport.HandledKey) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	m := benchMessage(n)
	var first, second pgx.Batch
	first.Queue(`begin`)
	first.Queue(`UPDATE biz SET n = n + 1 WHERE id = $1`, n%1000)
	second.Queue(`INSERT INTO "in.handled" (key, sum) VALUES ($1, $2)`, uuid.Text(key.ID), int32(key.Sum)) //nolint:gosec // its bits
	second.Queue(`INSERT INTO output (headers, body) VALUES ($1, $2)`, string(m.Headers.AppendJSON(nil)), m.Body)
	second.Queue(`commit`)
	for _, batch := range []*pgx.Batch{&first, &second} {
		if err := conn.SendBatch(ctx, batch).Close(); err != nil {
			return err
		}
	}
	return nil
}

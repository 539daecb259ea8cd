package postgres

import (
	"context"
	"crypto/rand"
	"encoding/json"
	mathrand "math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

const (
	// fillInbox adds the keys $1 to $2 of $3, whose times are spread over 8 days that end now. Keys
	// grow with time where $4 is 1, and are random where it is 0.
	fillInbox = `INSERT INTO %s"in.handled" (key, at, sum)
SELECT (CASE WHEN $4 = 1 THEN lpad(to_hex(ms), 12, '0') || substr(h, 1, 20) ELSE h END)::uuid, to_timestamp(ms / 1000.0), 1
FROM (SELECT (extract(epoch FROM now()) * 1000 - ($3::bigint - i) * (691200000.0 / $3))::bigint AS ms, md5(i::text) AS h
	FROM generate_series($1::bigint, $2::bigint) AS i) AS new`
	inboxWeek = 7 * 24 * time.Hour
)

// An inbox of so many ids of the last 8 days, of which those of the last 7 stay: its size, the time
// of a look for 100 ids, the rate of commits with one id each, and that of the removal of old ids,
// beside those commits and alone. HOLDFAST_INBOX_ROWS=20000000 go test -run none -bench InboxGrowth
// -benchtime 1x -timeout 1h -v ./transport/postgres
func BenchmarkInboxGrowth(b *testing.B) {
	w := newInbox(b)
	rows := w.fill(`ALTER TABLE %s"in.handled" DROP CONSTRAINT "in.handled_pkey"; DROP INDEX %s"in.handled_at_idx"`,
		`ALTER TABLE %s"in.handled" ADD PRIMARY KEY (key); CREATE INDEX "in.handled_at_idx" ON %s"in.handled" (at)`)
	c, s := w.open().(transport.OutboxStore), w.store()
	b.ResetTimer()
	for range b.N {
		stats, err := s.InspectInbox(b.Context(), "in.handled")
		ok(b, err)
		b.ReportMetric(float64(stats.Bytes)/float64(rows), "B/row")
		reportLooks(b, s)
		began, removed := time.Now(), int64(0)
		for n := int64(5000); n == 5000 && removed < int64(rows)/32; removed += n { // a quarter of the old ids
			n, err = s.Forget(b.Context(), "in.handled", inboxWeek, 5000)
			ok(b, err)
		}
		b.ReportMetric(float64(removed)/time.Since(began).Seconds(), "removed-alone/s")
		alone, _ := storing(b, c, func(ctx context.Context) float64 {
			<-ctx.Done()
			return 0
		})
		beside, paced := storing(b, c, func(ctx context.Context) float64 { // with the pauses of internal/tablequeue
			began, removed := time.Now(), int64(0)
			for n := int64(5000); n == 5000 && ctx.Err() == nil; removed += n {
				began := time.Now()
				n, err = s.Forget(b.Context(), "in.handled", inboxWeek, 5000)
				ok(b, err)
				pause(ctx, 10*time.Since(began))
			}
			return float64(removed) / time.Since(began).Seconds() // until no old ids were left
		})
		b.ReportMetric(alone, "stored/s")
		b.ReportMetric(beside, "stored-beside/s")
		b.ReportMetric(paced, "removed-beside/s")
	}
}

// The same ids in partitions of a day: the time of a look, which has to search each of them, and
// that of dropping the oldest. The primary key has to contain the time, so that it does not keep an
// id from being there twice. HOLDFAST_INBOX_ROWS=20000000 go test -run none -bench InboxPartitions
// -benchtime 1x -timeout 1h -v ./transport/postgres
func BenchmarkInboxPartitions(b *testing.B) {
	w := newInbox(b)
	w.exec(`DROP TABLE %s"in.handled"`)
	w.exec(`CREATE TABLE %s"in.handled" (key uuid NOT NULL, at timestamptz NOT NULL, sum integer NOT NULL) PARTITION BY RANGE (at)`)
	for n := range 10 {
		day := func(n int) string { return time.Now().AddDate(0, 0, n-8).Format(time.DateOnly) }
		w.exec(`CREATE TABLE %sday_` + strconv.Itoa(n) + ` PARTITION OF %s"in.handled" FOR VALUES FROM ('` + day(n) + `') TO ('` + day(n+1) + `')`)
	}
	w.fill(`SELECT 1`, `ALTER TABLE %s"in.handled" ADD PRIMARY KEY (key, at)`)
	b.ResetTimer()
	for range b.N {
		reportLooks(b, w.store())
		began := time.Now()
		w.exec(`DROP TABLE IF EXISTS %sday_1`)
		b.ReportMetric(float64(time.Since(began).Milliseconds()), "ms/drop")
	}
}

// The WAL of 20,000 ids that are added to 1,000,000 after a checkpoint, whose first change of a
// page writes all of it. go test -run none -bench InboxKeys -benchtime 1x ./transport/postgres
func BenchmarkInboxKeys(b *testing.B) {
	for ordered, name := range []string{"random", "ordered"} {
		b.Run(name, func(b *testing.B) {
			w := newInbox(b)
			w.exec(fillInbox, 1, 1_000_000, 1_020_000, ordered)
			for range b.N {
				w.exec(`CHECKPOINT`)
				var plan []byte
				ok(b, w.sql.QueryRow(b.Context(), `EXPLAIN (ANALYZE, WAL, FORMAT json) `+strings.ReplaceAll(fillInbox, "%s", w.schema+"."),
					1_000_001, 1_020_000, 1_020_000, ordered).Scan(&plan))
				var explained []struct {
					Plan struct {
						Bytes float64 `json:"WAL Bytes"`
					}
				}
				ok(b, json.Unmarshal(plan, &explained))
				b.ReportMetric(explained[0].Plan.Bytes/20_000, "WAL-B/row")
				w.exec(`DELETE FROM %s"in.handled" WHERE at > now() - interval '10 minutes'`)
			}
		})
	}
}

func newInbox(b *testing.B) *world {
	w := newWorld(b)
	ok(b, w.open().(transport.Installer).Install(b.Context(), transport.Plan{Inboxes: []string{"in.handled"}}))
	return w
}

// fill adds HOLDFAST_INBOX_ROWS ids, or a million, without the indexes, which it makes afterwards:
// that is faster, and they are as large.
func (w *world) fill(without, with string) (rows int) {
	const some = 5_000_000
	rows = 1_000_000
	if text := os.Getenv("HOLDFAST_INBOX_ROWS"); text != "" {
		var err error
		rows, err = strconv.Atoi(text)
		ok(w.t, err)
	}
	w.exec(`SET maintenance_work_mem = '1GB'`)
	w.exec(without)
	began := time.Now()
	for at := 1; at <= rows; at += some {
		w.exec(fillInbox, at, min(at+some-1, rows), rows, 1)
		w.t.Logf("%d ids after %v", min(at+some-1, rows), time.Since(began).Round(time.Second))
	}
	w.exec(with)
	w.exec(`VACUUM ANALYZE %s"in.handled"`)
	w.t.Logf("indexed and vacuumed after %v", time.Since(began).Round(time.Second))
	return rows
}

// reportLooks reports the median time of a look for 100 ids, of new messages and of messages of the
// last week.
func reportLooks(b *testing.B, s *store) {
	b.Helper()
	b.ReportMetric(float64(lookFor(b, s, 0).Microseconds()), "µs/100-new")
	b.ReportMetric(float64(lookFor(b, s, inboxWeek).Microseconds()), "µs/100-old")
}

// lookFor returns the median time of a look for 100 ids of messages that are so old, of which none
// is in the inbox.
func lookFor(b *testing.B, s *store, age time.Duration) time.Duration {
	var took []time.Duration
	for range 200 {
		keys := make([]transport.HandledKey, 100)
		for i := range keys {
			keys[i] = newKey(time.Now().Add(-age * time.Duration(mathrand.IntN(100)) / 100))
		}
		began := time.Now()
		_, err := s.FindHandled(b.Context(), "in.handled", keys)
		ok(b, err)
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return took[len(took)/2]
}

// newKey returns the key of a message that was made at t.
func newKey(t time.Time) (key transport.HandledKey) {
	_, _ = rand.Read(key.ID[:]) // does not fail
	for i, ms := 5, t.UnixMilli(); i >= 0; i, ms = i-1, ms>>8 {
		key.ID[i] = byte(ms)
	}
	return key
}

// storing returns the rate of 64 goroutines that store an id each, for 10 s, and the result of
// beside, which runs meanwhile.
func storing(b *testing.B, c transport.OutboxStore, beside func(context.Context) float64) (stored, other float64) {
	ctx, cancel := context.WithTimeout(b.Context(), 10*time.Second)
	defer cancel()
	var n atomic.Int64
	var all sync.WaitGroup
	began := time.Now()
	for range 64 {
		all.Go(func() {
			for ctx.Err() == nil {
				key := newKey(time.Now())
				if err := c.Store(b.Context(), transport.OutboxEntry{Inbox: "in.handled", Key: &key}); err != nil {
					b.Error(err)
					return
				}
				n.Add(1)
			}
		})
	}
	other = beside(ctx)
	all.Wait()
	return float64(n.Load()) / time.Since(began).Seconds(), other
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

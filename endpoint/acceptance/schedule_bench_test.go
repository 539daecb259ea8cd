package acceptance_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/saga"
	"github.com/holdfast-go/holdfast/schedule"
	"github.com/holdfast-go/holdfast/transport"
)

var idleSchedules = flag.Int("schedules", 1000, "schedules of BenchmarkIdleSchedules")

var endedJobs = flag.Int("ended", 1_000_000, "ended jobs of BenchmarkEndedJobs")

// BenchmarkEndedJobs looks at jobs beside as many that have ended as -ended says: at one of them,
// and at the snapshot.
func BenchmarkEndedJobs(b *testing.B) {
	for _, database := range []string{"sqlite", "postgres"} {
		b.Run(database, func(b *testing.B) {
			place := filepath.Join(b.TempDir(), "jobs.db")
			if database == "postgres" {
				place = brokertest.OwnPostgres(b).URL
			}
			rows, err := openKillStore(database, place)
			must(b, err)
			defer rows.Close()
			conn, err := rows.transport().Open(b.Context(), transport.Env{})
			must(b, err)
			defer conn.Close()
			must(b, conn.(transport.Installer).Install(b.Context(), transport.Plan{Records: []string{stateful.KindOf("work", endedKind), stateful.KindOf("work", "holdfast.jobs")}}))
			db, err := stateful.DatabaseOn(conn)
			must(b, err)
			for from := 0; from < *endedJobs; from += 1000 {
				must(b, db.Change(b.Context(), func(store transport.StateStore) ([]transport.Operation, error) {
					for n := from; n < from+1000; n++ {
						if err := endJob(b, store, n); err != nil {
							return nil, err
						}
					}
					return nil, nil
				}))
			}
			jobs, err := schedule.Inspect(conn, "work")
			must(b, err)
			n := 0
			b.Run("job", func(b *testing.B) {
				for b.Loop() {
					n = (n + 7919) % *endedJobs
					if _, known, err := jobs.Job(b.Context(), fmt.Sprint("job-", n)); err != nil || !known {
						b.Fatal(known, err)
					}
				}
			})
			b.Run("snapshot", func(b *testing.B) {
				for b.Loop() {
					_, err := jobs.Snapshot(b.Context())
					must(b, err)
				}
			})
		})
	}
}

// endedKind is the kind of the records of jobs that have ended.
const endedKind = "holdfast.jobs.ended"

// endJob stores a job that has ended.
func endJob(b *testing.B, store transport.StateStore, n int) error {
	key := fmt.Sprint("job-", n)
	name := transport.RecordName{Kind: stateful.KindOf("work", endedKind), Key: key}
	r, err := store.Load(b.Context(), saga.ID("work", endedKind, key), &name)
	if err != nil {
		return err
	}
	r.Status, r.Keep = transport.RecordEnded, 30*24*time.Hour
	r.Meta = fmt.Appendf(nil, `{"id":%q,"type":"Kill.Work","status":"Succeeded","attempt":1,"ended":"2026-01-01T00:00:00Z"}`, key)
	return store.Save(b.Context(), r)
}

// BenchmarkIdleSchedules counts the transactions of a PostgreSQL server that ten idle instances
// cause, without schedules and with as many as -schedules says, of which none is due. It also
// reports the time of a snapshot with them.
func BenchmarkIdleSchedules(b *testing.B) {
	for _, n := range []int{0, *idleSchedules} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			rows, err := openKillStore("postgres", brokertest.OwnPostgres(b).URL)
			must(b, err)
			defer rows.Close()
			ctx, cancel := context.WithCancel(b.Context())
			var running sync.WaitGroup
			defer running.Wait()
			defer cancel()
			var jobs *schedule.Inspector
			for i := range 10 {
				scheduler, ep := newIdle(b, rows, i, n)
				running.Go(func() {
					if err := ep.Run(ctx); err != nil {
						b.Error(err)
					}
				})
				must(b, ep.WaitReady(ctx))
				jobs, err = scheduler.Inspector(ep)
				must(b, err)
			}
			for planned := false; !planned; {
				snapshot, err := jobs.Snapshot(ctx)
				must(b, err)
				planned = len(snapshot.Schedules) == n
			}
			must(b, backoff.Sleep(ctx, 20*time.Second)) // until what the start has sent is handled
			for b.Loop() {
				before := transactions(b, rows)
				must(b, backoff.Sleep(ctx, time.Minute))
				b.ReportMetric(float64(transactions(b, rows)-before)/60, "transactions/s")
				began := time.Now()
				_, err := jobs.Snapshot(ctx)
				must(b, err)
				b.ReportMetric(float64(time.Since(began).Microseconds())/1000, "ms/snapshot")
			}
		})
	}
}

// newIdle returns an instance with schedules that are due tomorrow.
func newIdle(b *testing.B, rows killStore, instance, n int) (*schedule.Scheduler, *endpoint.Endpoint) {
	b.Helper()
	var c schedule.Config
	for i := range n {
		c.Schedules = append(c.Schedules, schedule.Schedule{Name: fmt.Sprint("idle-", i), Every: 24 * time.Hour, Message: work{i}})
	}
	scheduler, err := schedule.New(c)
	must(b, err)
	cfg := endpoint.Config{
		Name: "work", Instance: fmt.Sprint("instance-", instance), Transport: rows.transport(), Install: true,
		Transactions: endpoint.SendsAtomicWithReceive, Logger: slog.New(slog.DiscardHandler),
		Messages: []endpoint.Message{endpoint.Command[work]("Kill.Work")},
	}
	scheduler.Apply(&cfg)
	ep, err := endpoint.New(cfg)
	must(b, err)
	return scheduler, ep
}

// transactions returns the number of transactions of the server's database so far.
func transactions(b *testing.B, rows killStore) (n int) {
	b.Helper()
	const query = `SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()`
	must(b, rows.(*postgresKills).pool.QueryRow(b.Context(), query).Scan(&n))
	return n
}

package acceptance_test

import (
	"flag"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/saga"
	"github.com/holdfast-go/holdfast/schedule"
	"github.com/holdfast-go/holdfast/transport"
)

var endedJobs = flag.Int("ended", 1_000_000, "ended jobs of BenchmarkEndedJobs")

// BenchmarkEndedJobs looks at jobs beside as many that have ended as -ended says: at one of them, and at the snapshot.
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

package schedule

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
	"github.com/holdfast-go/holdfast/transport/postgres"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

// EnqueueFrom and the first attempt of a job find no job with the id, and both store one. The later
// transaction does not undo the work of the earlier, whichever comes first.
func TestRivalsStoreANewJobOnce(t *testing.T) {
	for name, at := range map[string]func(t *testing.T) transport.Transport{
		"memory": func(*testing.T) transport.Transport { return &inmemory.Transport{} },
		"sqlite": func(t *testing.T) transport.Transport {
			return &sqlite.Transport{Path: filepath.Join(t.TempDir(), "jobs.db")}
		},
		"postgres": func(t *testing.T) transport.Transport { return &postgres.Transport{URL: brokertest.Postgres(t)} },
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := at(t).Open(t.Context(), transport.Env{Endpoint: "billing"})
			check(t, err)
			defer conn.Close()
			plan := transport.Plan{Records: []string{nameOf("billing", kindActive, "").Kind, nameOf("billing", kindEnded, "").Kind}}
			check(t, conn.(transport.Installer).Install(t.Context(), plan))
			for _, status := range []Status{Queued, Running, WaitingRetry, Succeeded} {
				t.Run(string(status), func(t *testing.T) { testRivals(t, conn.(transport.OutboxStore), status) })
			}
		})
	}
}

func testRivals(t *testing.T, conn transport.OutboxStore, status Status) {
	begin := func() (transport.Tx, jobStore) {
		tx, err := conn.BeginStore(t.Context(), transport.OutboxEntry{})
		check(t, err)
		return tx, jobStore{tx.(transport.StateStore), "billing", time.Hour}
	}
	id := "job-" + string(status)
	stored := Job{ID: id, Status: status, Attempt: 1}
	other := Job{ID: id, Status: Queued}
	if status == Queued { // EnqueueFrom is the earlier
		other = Job{ID: id, Status: Running, Attempt: 1}
	}

	late, lateJobs := begin()
	if _, known, err := lateJobs.load(t.Context(), id); known || err != nil {
		t.Fatalf("known %v, error %v", known, err)
	}
	early, jobs := begin()
	check(t, jobs.create(t.Context(), Job{ID: id, Status: Queued, Attempt: 1}))
	check(t, early.Complete(t.Context(), nil))
	if status != Queued {
		early, jobs = begin()
		_, _, err := jobs.load(t.Context(), id)
		check(t, err)
		check(t, jobs.save(t.Context(), stored))
		check(t, early.Complete(t.Context(), nil))
	}

	err := lateJobs.create(t.Context(), other)
	if err == nil {
		err = late.Complete(t.Context(), nil) // SQLite finds out when it writes
	}
	if !errors.Is(err, transport.ErrConflict) {
		t.Errorf("the later transaction: %v, want ErrConflict", err)
	}
	_ = late.Rollback(t.Context()) // it may have ended
	last, jobs := begin()
	if got, known, err := jobs.load(t.Context(), id); err != nil || !known || got.Status != status || got.Attempt != 1 {
		t.Errorf("the job is %+v, known %v, error %v", got, known, err)
	}
	check(t, last.Rollback(t.Context()))
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

package schedule

import (
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// Two transactions find no job with an id, and store a job. The later transaction does not undo the work of the earlier.
func TestRivalsStoreANewJobOnce(t *testing.T) {
	for _, status := range []Status{Running, WaitingRetry, Succeeded} {
		t.Run(string(status), func(t *testing.T) {
			conn, err := (&inmemory.Transport{}).Open(t.Context(), transport.Env{Endpoint: "billing"})
			check(t, err)
			defer conn.Close()
			plan := transport.Plan{Records: []string{nameOf("billing", kindActive, "").Kind, nameOf("billing", kindEnded, "").Kind}}
			check(t, conn.(transport.Installer).Install(t.Context(), plan))
			begin := func() (transport.Tx, jobStore) {
				tx, err := conn.(transport.OutboxStore).BeginStore(t.Context(), transport.OutboxEntry{})
				check(t, err)
				return tx, jobStore{tx.(transport.StateStore), "billing", time.Hour}
			}
			job := Job{ID: "1", Status: Queued}

			late, lateJobs := begin()
			if _, known, err := lateJobs.load(t.Context(), job.ID); known || err != nil {
				t.Fatalf("known %v, error %v", known, err)
			}
			early, jobs := begin()
			check(t, jobs.create(t.Context(), Job{ID: job.ID, Status: Running, Attempt: 1}))
			check(t, early.Complete(t.Context(), nil))
			early, jobs = begin()
			check(t, jobs.save(t.Context(), Job{ID: job.ID, Status: status, Attempt: 1}))
			check(t, early.Complete(t.Context(), nil))

			if err := lateJobs.create(t.Context(), job); !errors.Is(err, transport.ErrConflict) {
				t.Errorf("the later transaction: %v, want ErrConflict", err)
			}
			check(t, late.Rollback(t.Context()))
			_, jobs = begin()
			if got, known, err := jobs.load(t.Context(), job.ID); err != nil || !known || got.Status != status || got.Attempt != 1 {
				t.Errorf("the job is %+v, known %v, error %v", got, known, err)
			}
		})
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

package schedule

import (
	"log/slog"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/saga"
	"github.com/holdfast-go/holdfast/transport"
)

// A sign changes the record of an attempt that runs, and no other.
func TestASignIsThatOfOneAttempt(t *testing.T) {
	inEachDatabase(t, func(t *testing.T, db stateful.Database) {
		db.Log = slog.New(slog.DiscardHandler)
		before := db.Now().Add(-time.Hour).UTC()
		for name, test := range map[string]struct {
			job  Job
			want bool
		}{
			"running":         {Job{Status: Running, RunID: "a", Renewed: before}, true},
			"without signs":   {Job{Status: Running, RunID: "a"}, true}, // an older version has changed the record
			"another attempt": {Job{Status: Running, RunID: "b", Renewed: before}, false},
			"waiting":         {Job{Status: WaitingRetry, RunID: "a"}, false},
			"ended":           {Job{Status: Cancelled, RunID: "a"}, false},
			"unknown":         {Job{}, false},
		} {
			test.job.ID = name
			if name != "unknown" {
				check(t, db.Change(t.Context(), func(store transport.StateStore) ([]transport.Operation, error) {
					return nil, jobStore{store, "billing", time.Hour}.save(t.Context(), test.job)
				}))
			}
			watch := attemptWatch{db: db, keep: time.Hour, job: name, runID: "a"}
			check(t, watch.renew(t.Context()))
			kind := kindActive
			if test.job.Status.Ended() {
				kind = kindEnded
			}
			r, err := db.Record(t.Context(), saga.ID("billing", kind, name))
			if name == "unknown" {
				if err == nil {
					t.Errorf("an unknown job has the record %+v", r)
				}
				continue
			}
			check(t, err)
			got, err := jobOf(r)
			check(t, err)
			if renewed := got.Renewed.After(before); renewed != test.want || got.Status != test.job.Status || got.RunID != test.job.RunID {
				t.Errorf("%s: %+v", name, got)
			}
		}
	})
}

func TestAJobIsSilentAfterTenMinutes(t *testing.T) {
	sign := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		job   Job
		after time.Duration
		want  bool
	}{
		"fresh":         {Job{Status: Running, Renewed: sign}, 10*time.Minute - 1, false},
		"old":           {Job{Status: Running, Renewed: sign}, 10 * time.Minute, true},
		"older version": {Job{Status: Running}, 10 * time.Hour, false},
		"queued":        {Job{Status: Queued, Renewed: sign}, 10 * time.Hour, false},
		"waiting":       {Job{Status: WaitingRetry, Renewed: sign}, 10 * time.Hour, false},
	} {
		if got := test.job.silent(sign.Add(test.after)); got != test.want {
			t.Errorf("%s: silent %v, want %v", name, got, test.want)
		}
	}
}

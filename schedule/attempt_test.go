package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/schedule"
	"github.com/holdfast-go/holdfast/transport"
)

// The retries of the endpoint are attempts that failed, not attempts that ended with their process.
func TestAnImmediateRetryIsNoInterruption(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		failures := 1
		s.report = func(context.Context) error {
			if failures--; failures >= 0 {
				return errors.New("no printer")
			}
			return nil
		}
		s.start(schedule.Schedule{Name: "reports", Every: time.Minute, Message: buildReport{}})
		s.after(62 * time.Second)
		if len(s.runs) != 2 || s.runs[0].JobID != s.runs[1].JobID || s.runs[0].RunID == s.runs[1].RunID {
			t.Fatalf("runs %+v", s.runs)
		}
		if job := s.job(s.runs[0].JobID); job.Status != schedule.Succeeded || job.Attempt != 2 || job.Interrupted != 0 {
			t.Errorf("%+v", job)
		}
	})
}

// A transaction that lost a conflict is repeated, as the same attempt.
func TestALostConflictIsNoAttempt(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		conflicts := 3
		s.report = func(context.Context) error {
			if conflicts--; conflicts >= 0 {
				return fmt.Errorf("stock: %w", transport.ErrConflict)
			}
			return nil
		}
		s.start(schedule.Schedule{Name: "reports", Every: time.Minute, Message: buildReport{}})
		s.after(65 * time.Second)
		if len(s.runs) != 4 {
			t.Fatalf("runs %+v", s.runs)
		}
		if job := s.job(s.runs[0].JobID); job.Status != schedule.Succeeded || job.Attempt != 1 || job.Interrupted != 0 {
			t.Errorf("%+v", job)
		}
	})
}

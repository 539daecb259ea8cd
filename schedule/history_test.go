package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/schedule"
	"github.com/holdfast-go/holdfast/transport"
)

// A failed attempt, one that loses a conflict and is repeated, and one that succeeds.
func TestAJobHasAHistory(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		calls := 0
		s.invoice = func(context.Context) error {
			switch calls++; calls {
			case 1:
				return errors.New("no mail server" + strings.Repeat("!", 1000))
			case 2:
				return fmt.Errorf("stock: %w", transport.ErrConflict)
			}
			sleep(time.Second)
			return nil
		}
		s.start()
		id := s.enqueueInHandler("42")
		s.after(15 * time.Second)
		job := s.job(id)
		if len(job.History) != 2 || job.Status != schedule.Succeeded || calls != 3 {
			t.Fatalf("%d calls, %+v", calls, job)
		}
		first, last := job.History[0], job.History[1]
		if first.Outcome != schedule.AttemptFailed || !strings.Contains(first.Error, "no mail server!") || len(first.Error) != 300 ||
			first.RunID != s.runs[0].RunID || first.Started.IsZero() || first.Ended.IsZero() {
			t.Errorf("%+v", first)
		}
		if last.Outcome != schedule.AttemptSucceeded || last.Error != "" || last.RunID != s.runs[2].RunID ||
			last.Ended.Sub(last.Started) != time.Second || last.Started.Sub(first.Ended) < 10*time.Second {
			t.Errorf("%+v", last)
		}
	})
}

func TestAHistoryHasTheLastTenAttempts(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		calls := 0
		s.report = func(context.Context) error {
			calls++
			return fmt.Errorf("failure %d", calls)
		}
		s.start(schedule.Schedule{Name: "reports", After: time.Hour, Message: buildReport{}})
		s.after(time.Hour)
		id := s.run(0).JobID
		s.after(5 * time.Minute)
		job := s.job(id)
		if job.Attempt != 24 || job.MaxAttempts != 24 || len(job.History) != 10 {
			t.Fatalf("%+v", job)
		}
		for i, attempt := range job.History {
			if want := fmt.Sprintf("failure %d", i+15); !strings.HasSuffix(attempt.Error, want) || attempt.Outcome != schedule.AttemptFailed {
				t.Errorf("attempt %d is %+v, want %s", i, attempt, want)
			}
		}
	})
}

func TestACancelledAttemptIsInTheHistory(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.invoice = func(ctx context.Context) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}
		s.start()
		id := s.enqueueInHandler("42")
		if running := s.job(id).History; len(running) != 1 || running[0].Outcome != "" || !running[0].Ended.IsZero() {
			t.Errorf("while the attempt runs: %+v", running)
		}
		if _, err := s.inspector().Cancel(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		s.after(6 * time.Second)
		if all := s.job(id).History; len(all) != 1 || all[0].Outcome != schedule.AttemptCancelled || all[0].Ended.IsZero() {
			t.Errorf("%+v", all)
		}
	})
}

// A stop interrupts the first attempt, and the process ends.
func TestAnInterruptedAttemptIsInTheHistory(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		stopped := false
		s.report = func(ctx context.Context) error {
			if stopped {
				return nil
			}
			<-ctx.Done()
			return context.Cause(ctx)
		}
		every := schedule.Schedule{Name: "reports", Every: time.Hour, Message: buildReport{}}
		s.start(every)
		s.after(time.Hour)
		s.stop()
		stopped = true
		s.start(every)
		s.after(time.Minute)
		job := s.job(s.runs[0].JobID)
		if job.Status != schedule.Succeeded || job.Interrupted != 1 || len(job.History) != 2 {
			t.Fatalf("%+v", job)
		}
		if first := job.History[0]; first.Outcome != schedule.AttemptInterrupted || !first.Ended.IsZero() || first.Error != "" {
			t.Errorf("%+v", first)
		}
	})
}

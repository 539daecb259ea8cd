package schedule_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/schedule"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// charge handles a chargeOrder, which enqueues an invoice, and returns the id of the job.
func (s *shop) enqueueInHandler(order string) (id string) {
	s.t.Helper()
	if err := s.endpoint.SendLocal(s.t.Context(), chargeOrder{order}); err != nil {
		s.t.Fatal(err)
	}
	s.after(time.Second)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs[len(s.runs)-1].JobID
}

func TestADeferredJobWaitsForItsRetries(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		failures := 2
		s.invoice = func(context.Context) error {
			if failures--; failures >= 0 {
				return errors.New("no mail server")
			}
			return nil
		}
		s.start()
		id := s.enqueueInHandler("42")
		first := s.job(id)
		if first.Status != schedule.WaitingRetry || first.Attempt != 1 || first.MaxAttempts != 3 || first.Correlation != "42" ||
			!strings.Contains(first.LastError, "no mail server") || first.NextAttempt.Sub(first.Started) != 10*time.Second {
			t.Errorf("%+v", first)
		}
		s.after(11 * time.Second)
		second := s.job(id)
		if second.Status != schedule.WaitingRetry || second.Attempt != 2 || second.RunID == first.RunID || second.ID != first.ID ||
			second.NextAttempt.Sub(second.Started) != 20*time.Second {
			t.Errorf("%+v", second)
		}
		s.after(20 * time.Second)
		if job := s.job(id); job.Status != schedule.Succeeded || job.Attempt != 3 || job.LastError != "" || job.Ended.IsZero() {
			t.Errorf("%+v", job)
		}
	})
}

func TestAJobThatFailsForGoodIsFailed(t *testing.T) {
	for name, test := range map[string]struct {
		err     error
		attempt int
	}{
		"used up":       {errors.New("no mail server"), 3},
		"unrecoverable": {recoverability.Unrecoverable(errors.New("no such customer")), 1},
	} {
		t.Run(name, func(t *testing.T) {
			inEachMode(t, func(t *testing.T, s *shop) {
				s.invoice = func(context.Context) error { return test.err }
				s.start()
				id := s.enqueueInHandler("42")
				s.after(time.Minute)
				if job := s.job(id); job.Status != schedule.Failed || job.Attempt != test.attempt || job.LastError == "" {
					t.Errorf("%+v", job)
				}
				if n := len(s.broker.Messages("error")); n != 1 {
					t.Errorf("%d messages in the error queue", n)
				}
			})
		})
	}
}

func TestAnUnknownPolicyIsAnError(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.start()
		_, err := s.scheduler.EnqueueFrom(t.Context(), s.endpoint, sendInvoice{"7"}, schedule.Policy("none"))
		if err == nil || !strings.Contains(err.Error(), "none") {
			t.Errorf("%v", err)
		}
		s.after(time.Second)
		if n := len(s.times()); n != 0 {
			t.Errorf("%d runs", n)
		}
	})
}

func TestAWaitingJobIsCancelled(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.invoice = func(context.Context) error { return errors.New("no mail server") }
		s.start()
		id := s.enqueueInHandler("42")
		if cancelled, err := s.inspector().Cancel(t.Context(), id); !cancelled || err != nil {
			t.Fatal(cancelled, err)
		}
		s.after(time.Minute)
		if job := s.job(id); job.Status != schedule.Cancelled || len(s.runs) != 1 || !job.NextAttempt.IsZero() {
			t.Errorf("%d runs, %+v", len(s.runs), job)
		}
		if cancelled, err := s.inspector().Cancel(t.Context(), id); cancelled || err != nil {
			t.Error("an ended job was cancelled", err)
		}
	})
}

func TestARunningJobIsCancelled(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.invoice = func(ctx context.Context) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}
		s.start()
		id := s.enqueueInHandler("42")
		if job := s.job(id); job.Status != schedule.Running {
			t.Errorf("%+v", job)
		}
		if cancelled, err := s.inspector().Cancel(t.Context(), id); !cancelled || err != nil {
			t.Fatal(cancelled, err)
		}
		s.after(6 * time.Second)
		if job := s.job(id); job.Status != schedule.Cancelled || len(s.runs) != 1 {
			t.Errorf("%d runs, %+v", len(s.runs), job)
		}
		if n := len(s.broker.Messages("error")); n != 0 {
			t.Errorf("%d messages in the error queue", n)
		}
	})
}

func TestAJobForLaterIsCancelled(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.start()
		id, err := s.scheduler.EnqueueFrom(t.Context(), s.endpoint, sendInvoice{"7"}, schedule.After(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		late, err := s.scheduler.EnqueueFrom(t.Context(), s.endpoint, sendInvoice{"8"}, schedule.After(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		if job := s.job(id); job.Status != schedule.Queued || job.NextAttempt.Sub(job.Created) != time.Hour {
			t.Errorf("%+v", job)
		}
		if cancelled, err := s.inspector().Cancel(t.Context(), id); !cancelled || err != nil {
			t.Fatal(cancelled, err)
		}
		s.after(2 * time.Hour)
		if job := s.job(id); job.Status != schedule.Cancelled || !job.NextAttempt.IsZero() {
			t.Errorf("%+v", job)
		}
		if job := s.job(late); job.Status != schedule.Succeeded || len(s.runs) != 1 {
			t.Errorf("%+v, runs %v", job, s.runs)
		}
	})
}

func TestTheEndOfACancelledOccurrenceIsKnown(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.report = func(ctx context.Context) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}
		s.start(schedule.Schedule{Name: "reports", After: 10 * time.Second, Message: buildReport{}})
		s.after(11 * time.Second)
		current := s.snapshot().Schedules[0].Current
		if cancelled, err := s.inspector().Cancel(t.Context(), current); !cancelled || err != nil {
			t.Fatal(cancelled, err)
		}
		s.after(6 * time.Second)
		if at := s.snapshot().Schedules[0]; at.Last.Status != schedule.Cancelled || at.Next.IsZero() || at.Current != "" {
			t.Errorf("%+v", at)
		}
		s.after(11 * time.Second)
		if len(s.runs) != 2 {
			t.Errorf("runs %v", s.runs)
		}
	})
}

func TestAnUnknownJobIsNoError(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.start()
		for _, id := range []string{"", "none", "%", "a\x00b", strings.Repeat("x", 500)} {
			if _, known, err := s.inspector().Job(t.Context(), id); known || err != nil {
				t.Errorf("%q: %v, %v", id, known, err)
			}
			if cancelled, err := s.inspector().Cancel(t.Context(), id); cancelled || err != nil {
				t.Errorf("%q: %v, %v", id, cancelled, err)
			}
		}
	})
}

// untold has a field that JSON does not store.
type untold struct{ secret int }

func TestMistakesAreErrorsOfNew(t *testing.T) {
	message := buildReport{}
	for want, given := range map[string]schedule.Schedule{
		"the name is empty":      {Every: time.Minute, Message: message},
		"201 bytes":              {Name: strings.Repeat("x", 201), Every: time.Minute, Message: message},
		"control character":      {Name: "a\n", Every: time.Minute, Message: message},
		"exactly one of":         {Name: "a", Message: message},
		"one of Cron":            {Name: "a", Every: time.Minute, After: time.Minute, Message: message},
		"at least 1s":            {Name: "a", Every: time.Millisecond, Message: message},
		"After is -1s":           {Name: "a", After: -time.Second, Message: message},
		"Message is nil":         {Name: "a", Every: time.Minute},
		"day":                    {Name: "a", Cron: "0 0 30 2 *", Message: message},
		"fields":                 {Name: "a", Cron: "* *", Message: message},
		"Nowhere":                {Name: "a", Cron: "* * * * *", Zone: "Nowhere/None", Message: message},
		"Local differs":          {Name: "a", Cron: "* * * * *", Zone: "Local", Message: message},
		"Zone is for Cron":       {Name: "a", Every: time.Minute, Zone: "Europe/Berlin", Message: message},
		"Missed(7)":              {Name: "a", Every: time.Minute, Message: message, Missed: 7},
		"Overlap(7)":             {Name: "a", Every: time.Minute, Message: message, Overlap: 7},
		"untold.secret: the":     {Name: "a", Every: time.Minute, Message: &untold{secret: 1}},
		"two schedules have tha": {Name: "twice", Every: time.Minute, Message: message},
	} {
		_, err := schedule.New(schedule.Config{Schedules: []schedule.Schedule{
			given, {Name: "twice", Every: time.Minute, Message: message},
		}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q in it", given, err, want)
		}
	}
	if _, err := schedule.New(schedule.Config{Keep: -1}); err == nil {
		t.Error("a negative Keep is no error")
	}
}

func TestAnEndpointRefusesSchedulesThatCannotRun(t *testing.T) {
	for name, test := range map[string]struct {
		cfg  endpoint.Config
		want string
	}{
		"not registered": {endpoint.Config{Outbox: &inmemory.Transport{}}, "buildReport"},
		"no outbox": {
			endpoint.Config{Messages: []endpoint.Message{endpoint.Command[buildReport]("Shop.BuildReport")}}, "set Outbox",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := schedule.New(schedule.Config{Schedules: []schedule.Schedule{
				{Name: "a", Every: time.Minute, Message: buildReport{}},
			}})
			if err != nil {
				t.Fatal(err)
			}
			cfg := test.cfg
			cfg.Name, cfg.Transport = "billing", &inmemory.Transport{}
			s.Apply(&cfg)
			if _, err := endpoint.New(cfg); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q in it", err, test.want)
			}
		})
	}
}

func TestACancelledJobIsKeptAsLongAsOthers(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.keep = time.Hour
		s.start()
		id, err := s.scheduler.EnqueueFrom(t.Context(), s.endpoint, sendInvoice{"7"}, schedule.After(24*time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		if cancelled, err := s.inspector().Cancel(t.Context(), id); !cancelled || err != nil {
			t.Fatal(cancelled, err)
		}
		s.after(30 * time.Minute)
		if job := s.job(id); job.Status != schedule.Cancelled {
			t.Errorf("%+v", job)
		}
		s.after(2 * time.Hour)
		if job, known, err := s.inspector().Job(t.Context(), id); known || err != nil {
			t.Errorf("the job is kept for longer than Config.Keep: %+v, %v", job, err)
		}
	})
}

func TestABadCorrelationIsRefused(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.start()
		for _, text := range []string{"\xff", strings.Repeat("x", 1001)} {
			_, err := s.scheduler.EnqueueFrom(t.Context(), s.endpoint, sendInvoice{"7"}, schedule.Correlation(text))
			if err == nil || !strings.Contains(err.Error(), "the correlation") {
				t.Errorf("%.10q: %v", text, err)
			}
		}
		for _, text := range []string{"a\nb", "\x00", "ü%"} {
			id, err := s.scheduler.EnqueueFrom(t.Context(), s.endpoint, sendInvoice{"7"}, schedule.Correlation(text))
			if err != nil {
				t.Fatal(err)
			}
			s.after(time.Second)
			if job := s.job(id); job.Correlation != text || job.Status != schedule.Succeeded {
				t.Errorf("%q: %+v", text, job)
			}
		}
		if len(s.runs) != 3 {
			t.Errorf("runs %v", s.runs)
		}
	})
}

func TestASchedulerHasOneEndpoint(t *testing.T) {
	s, err := schedule.New(schedule.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"", "make one for each endpoint"} {
		cfg := endpoint.Config{Name: "billing", Transport: &inmemory.Transport{}, Outbox: &inmemory.Transport{}}
		s.Apply(&cfg)
		_, err := endpoint.New(cfg)
		if i == 0 && err != nil || i == 1 && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("endpoint %d: %v", i+1, err)
		}
	}
}

// A policy with a Timeout alone limits the attempt. The retries of the job are those of the
// endpoint.
func TestALimitLeavesTheRetriesOfAJob(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.invoice = func(ctx context.Context) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}
		s.start()
		id, err := s.scheduler.EnqueueFrom(t.Context(), s.endpoint, sendInvoice{"7"}, schedule.Policy("limit"))
		if err != nil {
			t.Fatal(err)
		}
		s.after(time.Hour)
		if job := s.job(id); job.Status != schedule.Failed || job.Attempt != 24 || job.MaxAttempts != 24 {
			t.Errorf("%+v, want 24 attempts", job)
		}
	})
}

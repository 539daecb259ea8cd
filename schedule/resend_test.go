package schedule_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/schedule"
)

// wantFound checks that the lost occurrence with an id has run, or was given up by an endpoint
// without an inbox.
func (s *shop) wantFound(id string) {
	s.t.Helper()
	job, want := s.job(id), schedule.Lost
	if s.hasInbox() {
		want = schedule.Succeeded
	}
	if job.Status != want || job.Ended.IsZero() {
		s.t.Errorf("%+v, want %s", job, want)
	}
}

func TestALostRunningOccurrenceIsFound(t *testing.T) {
	for name, of := range map[string]schedule.Schedule{
		"every": hourly, "after": {Name: "reports", After: time.Hour, Message: buildReport{}},
		"catch up": {Name: "reports", Every: time.Hour, Message: buildReport{}, Missed: schedule.CatchUp},
	} {
		t.Run(name, func(t *testing.T) {
			inEachMode(t, func(t *testing.T, s *shop) {
				id := s.loseRunning(of)
				s.start(of)
				s.after(9 * time.Minute)
				if job := s.job(id); job.Status != schedule.Running {
					t.Errorf("before the limit: %+v", job)
				}
				s.after(11 * time.Minute)
				s.wantFound(id)
				if job := s.job(id); job.History[0].Outcome != schedule.AttemptInterrupted {
					t.Errorf("%+v", job.History)
				}
				s.after(3 * time.Hour)
				if n := len(s.times()); n < 3 || s.snapshot().Schedules[0].Skipped != 0 {
					t.Errorf("runs at %v, %+v", s.times(), s.snapshot().Schedules)
				}
			})
		})
	}
}

// The message is lost before an attempt begins.
func TestALostQueuedOccurrenceIsFound(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.lose = 1
		s.start(hourly)
		s.after(61 * time.Minute)
		id := s.snapshot().Schedules[0].Current
		s.after(18 * time.Minute)
		s.wantFound(id)
		s.after(time.Hour)
		if n := len(s.times()); s.hasInbox() && n != 2 || !s.hasInbox() && n != 1 {
			t.Errorf("runs at %v", s.times())
		}
	})
}

func TestALostRetryOfAnOccurrenceIsFound(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		id := s.loseRunning(hourly)
		s.changeJob(id, map[string]any{"status": schedule.WaitingRetry, "renewed": nil, "next_attempt": time.Now().Add(time.Hour)})
		s.start(hourly)
		s.after(65 * time.Minute)
		if job := s.job(id); job.Status != schedule.WaitingRetry {
			t.Errorf("before the retry is due: %+v", job)
		}
		s.after(15 * time.Minute)
		s.wantFound(id)
	})
}

// Messages that are sent again are lost too.
func TestALostOccurrenceIsSentOnceAnHour(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.lose = 4
		seldom := schedule.Schedule{Name: "reports", Every: 6 * time.Hour, Message: buildReport{}}
		s.start(seldom)
		s.after(6 * time.Hour)
		id := s.snapshot().Schedules[0].Current
		s.after(5 * time.Hour)
		s.wantFound(id)
		sent := s.sentTimes(id)
		if !s.hasInbox() {
			if len(sent) != 1 {
				t.Errorf("sent at %v", sent)
			}
			return
		}
		if len(sent) != 5 || s.runsOf(id) != 1 {
			t.Fatalf("sent at %v, %d runs", sent, s.runsOf(id))
		}
		for i := 2; i < len(sent); i++ {
			if sent[i]-sent[i-1] < time.Hour || sent[i]-sent[i-1] > 70*time.Minute {
				t.Errorf("sent at %v", sent)
			}
		}
	})
}

// Two processes search, and the job runs longer than all limits.
func TestALongJobIsNotLost(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		long := func(context.Context) error {
			sleep(3 * time.Hour)
			return nil
		}
		other := s.another()
		s.report, other.report = long, long
		seldom := schedule.Schedule{Name: "reports", Every: 6 * time.Hour, Message: buildReport{}}
		s.start(seldom)
		other.start(seldom)
		s.after(6*time.Hour + time.Minute)
		id := s.snapshot().Schedules[0].Current
		s.after(4 * time.Hour)
		other.stop()
		if job := s.job(id); job.Status != schedule.Succeeded || job.Attempt != 1 {
			t.Errorf("%+v", job)
		}
		if n, runs := len(s.sentTimes(id))+len(other.sentTimes(id)), s.runsOf(id)+other.runsOf(id); n != 1 || runs != 1 {
			t.Errorf("sent %d times, %d runs", n, runs)
		}
	})
}

// A process ends in its run. The message is delivered again a quarter of an hour later.
func TestAReturnedMessageIsNotLost(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		first := true
		s.report = func(ctx context.Context) error {
			if first {
				<-ctx.Done()
				return context.Cause(ctx)
			}
			sleep(25 * time.Minute)
			return nil
		}
		s.start(hourly)
		s.after(time.Hour)
		s.stop()
		id := s.run(0).JobID
		first = false
		s.after(15 * time.Minute)
		s.start(hourly)
		s.after(28 * time.Minute)
		if job := s.job(id); job.Status != schedule.Succeeded || job.Attempt != 2 || len(s.sentTimes(id)) != 1 {
			t.Errorf("sent at %v, %+v", s.sentTimes(id), job)
		}
	})
}

// More messages than an hour suffices for are in the queue before the occurrence.
func TestAnOccurrenceInALongQueueIsNotLost(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.invoice = func(context.Context) error {
			sleep(40 * time.Second)
			return nil
		}
		s.start(hourly)
		flood := func() {
			for i := range 600 { // 4 at a time: 100 minutes
				if err := s.endpoint.SendLocal(t.Context(), sendInvoice{fmt.Sprint(i)}); err != nil {
					t.Fatal(err)
				}
			}
		}
		s.after(59 * time.Minute)
		flood()
		s.after(30 * time.Minute)
		flood() // the occurrence is sent when the first 600 are handled, and waits for these
		s.after(80 * time.Minute)
		id := s.snapshot().Schedules[0].Current
		if job := s.job(id); job.Status != schedule.Queued {
			t.Fatalf("%+v", job)
		}
		s.after(70 * time.Minute)
		if job := s.job(id); job.Status != schedule.Queued {
			t.Fatalf("more than an hour later: %+v", job)
		}
		s.after(50 * time.Minute)
		if job := s.job(id); job.Status != schedule.Succeeded || len(s.sentTimes(id)) != 1 {
			t.Errorf("sent at %v, %+v", s.sentTimes(id), job)
		}
	})
}

// A message may return when its lease is over: no probe counts before, and the second one waits as
// long.
func TestTheLeaseOfALostMessageIsAwaited(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		s.broker.Lease = 20 * time.Minute
		id := s.loseRunning(hourly)
		s.start(hourly)
		s.after(49 * time.Minute)
		if job := s.job(id); job.Status != schedule.Running {
			t.Errorf("before both: %+v", job)
		}
		s.after(70 * time.Minute) // an outbox in the database of the transport has the lease too
		s.wantFound(id)
	})
}

// A sign between the probes begins the search anew.
func TestASignEndsTheSearchForAJob(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		id := s.loseRunning(hourly)
		s.start(hourly)
		s.after(12 * time.Minute) // the first probe was handled
		s.changeJob(id, map[string]any{"renewed": time.Now()})
		s.after(16 * time.Minute)
		if job := s.job(id); job.Status != schedule.Running {
			t.Errorf("after the first probe behind the sign: %+v", job)
		}
		s.after(5 * time.Minute)
		s.wantFound(id)
	})
}

// An endpoint that is not ready knows nothing: here one of its queues is paused.
func TestAnEndpointThatIsNotReadyFindsNothing(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		id := s.loseRunning(hourly)
		s.instance = "a"
		s.start(hourly)
		if err := s.endpoint.Pause(t.Context(), "billing-a"); err != nil {
			t.Fatal(err)
		}
		s.after(5 * time.Hour)
		if job := s.job(id); job.Status != schedule.Running {
			t.Errorf("while a queue is paused: %+v", job)
		}
		if err := s.endpoint.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.after(11 * time.Minute)
		s.wantFound(id)
	})
}

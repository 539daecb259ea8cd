package schedule

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/saga"
	"github.com/holdfast-go/holdfast/transport"
)

// ErrCancelled is the cause of the context of a handler whose job is cancelled.
var ErrCancelled = errors.New("the job is cancelled")

// Run is an attempt at a job, as its handler sees it.
type Run struct {
	// JobID is the id of the job, the same at every attempt. RunID is another at each.
	JobID, RunID string
	// Schedule is the schedule whose occurrence the job is, and Due its time; zero values for other
	// jobs.
	Schedule string
	Due      time.Time
	// Correlation is the text of the option [Correlation].
	Correlation string
	// Attempt is the number of the attempt, from 1.
	Attempt int
}

type runKey struct{}

// RunOf returns the attempt that a handler with ctx makes. It reports false if the message is no
// job.
func RunOf(ctx context.Context) (Run, bool) {
	r, ok := ctx.Value(runKey{}).(Run)
	return r, ok
}

// idOf returns the id of the job that a message is, and "" for one that is none: a job has the id
// of its message.
func idOf(r *pipeline.Receive) string {
	id := r.Headers.Get(header.HoldfastJob)
	if id == "" || id != r.Message.ID || len(id) > maxName {
		return ""
	}
	return id
}

// runJobs is the behavior that keeps the states of jobs while their handlers run.
func (s *Scheduler) runJobs(next pipeline.Func[*pipeline.Logical]) pipeline.Func[*pipeline.Logical] {
	return func(ctx context.Context, l *pipeline.Logical) error {
		id := idOf(l.Receive)
		session, ok := l.Sender().(*endpoint.Session)
		if id == "" || !ok {
			return next(ctx, l)
		}
		ep, err := s.running(ctx)
		if err != nil {
			return err
		}
		db, err := ep.Database()
		if err != nil {
			return err
		}
		job, run, err := s.begin(ctx, db, id, l)
		if err != nil || !run {
			return err
		}
		defer s.returned.add(job.RunID)
		if err := s.runJob(ctx, db, job, l, next); err != nil {
			return err
		}
		return s.succeed(ctx, session, job)
	}
}

// begin stores that a job runs, in a transaction of its own. It reports false for a job that has
// ended.
func (s *Scheduler) begin(ctx context.Context, db stateful.Database, id string, l *pipeline.Logical) (job Job, run bool, err error) {
	runID := uuid.New(time.Now())
	err = db.Change(ctx, func(store transport.StateStore) ([]transport.Operation, error) {
		jobs := jobStore{store, s.live.Load().name, s.keep}
		known := false
		if job, known, err = jobs.load(ctx, id); err != nil {
			return nil, err
		}
		switch {
		case !known:
			job = fromHeaders(id, l.Receive)
		case job.Status == Cancelled, job.Status == Skipped, job.Status == Succeeded, job.Status == Lost:
			run = false
			return nil, nil
		case job.Status == Running && s.returned.has(job.RunID): // its transaction lost a conflict: the same attempt once more
			job.repeatAttempt()
		case job.Status == Running:
			job.Interrupted++
		}
		run = true
		job.Attempt++
		job.Status, job.RunID, job.Type = Running, runID, l.Type
		job.Started, job.NextAttempt, job.Ended = db.Now().UTC(), time.Time{}, time.Time{}
		job.Renewed = job.Started
		job.startAttempt(runID, job.Started)
		if !known {
			return nil, jobs.create(ctx, job)
		}
		return nil, jobs.save(ctx, job)
	})
	if err == nil && !run {
		s.live.Load().log.InfoContext(ctx, "a job that has ended is not run", slog.String("job", id), slog.String("status", string(job.Status)))
	}
	return job, run, err
}

// fromHeaders returns a job whose sender has stored no state.
func fromHeaders(id string, r *pipeline.Receive) Job {
	due, _ := time.Parse(time.RFC3339Nano, r.Headers.Get(header.HoldfastJobDue)) // the zero Time for none
	return Job{
		ID: id, Schedule: cut(r.Headers.Get(header.HoldfastJobSchedule), maxName), Due: due,
		Correlation: cut(r.Headers.Get(header.HoldfastJobCorrelation), maxError), Created: time.Now().UTC(),
	}
}

func cut(text string, most int) string { return text[:min(len(text), most)] }

// runJob calls the handlers, with a context that ends when the job is cancelled.
func (s *Scheduler) runJob(
	ctx context.Context, db stateful.Database, job Job, l *pipeline.Logical, next pipeline.Func[*pipeline.Logical],
) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if !job.CancelRequested.IsZero() { // while an earlier attempt ran, whose process ended
		cancel(ErrCancelled)
		return ErrCancelled
	}
	watch := attemptWatch{db, s.keep, job.ID, job.RunID, cancel}
	defer watch.start(ctx)()
	return next(context.WithValue(ctx, runKey{}, Run{
		JobID: job.ID, RunID: job.RunID, Schedule: job.Schedule, Due: job.Due, Correlation: job.Correlation, Attempt: job.Attempt,
	}), l)
}

// succeed stores that a job has succeeded, in the transaction of its handlers.
func (s *Scheduler) succeed(ctx context.Context, session *endpoint.Session, job Job) error {
	job.Status, job.LastError = Succeeded, ""
	job.endAttempt(AttemptSucceeded, "", s.now())
	return s.end(ctx, session, job)
}

// end stores a job that has ended, and tells its schedule.
func (s *Scheduler) end(ctx context.Context, session *endpoint.Session, job Job) error {
	store, err := s.storeOf(ctx, session)
	if err != nil {
		return err
	}
	job.Ended = s.now()
	if err := store.save(ctx, job); err != nil {
		return err
	}
	if job.Schedule == "" {
		return nil
	}
	return session.SendLocal(ctx, occurrenceEnded{job.Schedule, job.ID, job.Due, string(job.Status)})
}

// recoverJobs is the behavior that stores the failures of jobs.
func (s *Scheduler) recoverJobs(next pipeline.Func[*pipeline.Recover]) pipeline.Func[*pipeline.Recover] {
	return func(ctx context.Context, rec *pipeline.Recover) error {
		id := idOf(rec.Receive)
		session, ok := rec.Sender().(*endpoint.Session)
		if id == "" || !ok || s.live.Load() == nil {
			return next(ctx, rec)
		}
		if err := s.failed(ctx, session, id, rec); err != nil {
			s.live.Load().log.ErrorContext(ctx, "the state of a job that failed could not be stored: its message is treated as any other",
				slog.String("job", id), slog.Any("error", err))
		}
		return next(ctx, rec)
	}
}

// failed stores the failure of a job. A job that is cancelled is not attempted again.
func (s *Scheduler) failed(ctx context.Context, session *endpoint.Session, id string, rec *pipeline.Recover) error {
	db, err := s.live.Load().Database()
	if err != nil {
		return err
	}
	r, err := db.Record(ctx, saga.ID(s.live.Load().name, kindActive, id))
	if errors.Is(err, transport.ErrNoRecord) {
		return nil // it failed before it began
	}
	if err != nil {
		return err
	}
	job, err := jobOf(r)
	if err != nil {
		return err
	}
	seen := job
	job.LastError = errorText(rec.Failure.Err)
	job.MaxAttempts = attemptsOf(&rec.Failure)
	cancelled := !job.CancelRequested.IsZero()
	outcome := AttemptFailed
	if cancelled {
		outcome = AttemptCancelled
	}
	job.endAttempt(outcome, job.LastError, db.Now().UTC())
	if _, ok := rec.Action.(recoverability.Retry); ok && !cancelled {
		return s.again(ctx, db, job, 0)
	}
	if inline, ok := rec.Action.(recoverability.RetryInline); ok && !cancelled {
		return s.again(ctx, db, job, inline.For)
	}
	store, err := s.storeOf(ctx, session)
	if err != nil {
		return err
	}
	now, known, err := store.load(ctx, id)
	if err != nil || !known || now.RunID != seen.RunID || now.Status != seen.Status { // another attempt has begun or ended
		return err
	}
	job.CancelRequested = now.CancelRequested // it may have been requested meanwhile
	if cancelled {
		job.Status = Cancelled
		rec.Action = recoverability.Discard{Reason: ErrCancelled.Error()}
		return s.end(ctx, session, job)
	}
	if delay, ok := rec.Action.(recoverability.Delay); ok {
		job.Status, job.NextAttempt = WaitingRetry, db.Now().Add(delay.For).UTC()
		return store.save(ctx, job)
	}
	job.Status = Failed
	return s.end(ctx, session, job)
}

// attemptsOf returns the number of attempts that the retries for a failure allow.
func attemptsOf(f *recoverability.Failure) int {
	if use := f.Config.RetryOf(f.Type, f.Headers); use.Mode != 0 {
		return use.Policy.Retries() + 1
	}
	allowed := f.Allowed()
	return (allowed.Immediate + 1) * (allowed.Delayed + 1)
}

// again stores that a job waits for another attempt at the same message, in a transaction of its
// own: no other goes with such a retry. Otherwise the attempt would look as if its process had
// ended.
func (s *Scheduler) again(ctx context.Context, db stateful.Database, job Job, after time.Duration) error {
	job.Status, job.NextAttempt = WaitingRetry, db.Now().Add(after).UTC()
	return db.Change(ctx, func(store transport.StateStore) ([]transport.Operation, error) {
		jobs := jobStore{store, s.live.Load().name, s.keep}
		now, known, err := jobs.load(ctx, job.ID)
		if err != nil || !known || now.RunID != job.RunID || now.Status != Running { // it was changed meanwhile
			return nil, err
		}
		job.CancelRequested = now.CancelRequested
		return nil, jobs.save(ctx, job)
	})
}

// errorText returns the beginning of the text of an error, which may panic.
func errorText(err error) (text string) {
	defer func() {
		if recover() != nil {
			text = "the error panicked when it was asked for its text"
		}
	}()
	return cut(err.Error(), maxError)
}

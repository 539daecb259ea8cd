package schedule

import (
	"context"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/saga"
	"github.com/holdfast-go/holdfast/transport"
)

const (
	// watchPause is the time between two looks at whether a running job is to be cancelled.
	watchPause = 5 * time.Second
	// renewPause is the time between two signs of a running attempt.
	renewPause = time.Minute
	// silentJobAfter is the time without a sign after which an attempt counts as gone.
	silentJobAfter = 10 * time.Minute
	// renewWithin bounds one sign, and renewGrace a sign that is being stored when the attempt
	// ends: its outcome should be known before the transaction of the attempt stores the job.
	renewWithin = 10 * time.Second
	renewGrace  = time.Second
)

// attemptWatch looks for a cancellation of an attempt that runs for long, and stores signs of the
// attempt.
type attemptWatch struct {
	db     stateful.Database
	keep   time.Duration
	job    string
	runID  string
	cancel context.CancelCauseFunc // ends the context of the handlers
}

// start starts the watch. The result stops the watch. Handlers may run on after the end of ctx, and
// so do their signs.
func (w *attemptWatch) start(ctx context.Context) (stop func()) {
	ctx, end := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	begin := time.AfterFunc(watchPause, func() {
		defer close(done)
		w.run(ctx)
	})
	return func() {
		end()
		if !begin.Stop() {
			<-done
		}
	}
}

func (w *attemptWatch) run(ctx context.Context) {
	renewed, cancelled := time.Now().Add(-watchPause), false
	for {
		if !cancelled && w.isCancelled(ctx) {
			cancelled = true
			w.cancel(ErrCancelled) // the handlers may run on, and the signs of the attempt with them
		}
		if time.Since(renewed) >= renewPause {
			renewed = time.Now()
			if err := w.renew(ctx); err != nil && ctx.Err() == nil {
				w.db.Log.WarnContext(ctx, "the sign of a job that runs could not be stored: after 10 minutes without a sign its process "+
					"counts as gone", slog.String("job", w.job), slog.Any("error", err))
			}
		}
		timer := time.NewTimer(watchPause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

func (w *attemptWatch) isCancelled(ctx context.Context) bool {
	r, err := w.db.Record(ctx, saga.ID(w.db.Endpoint, kindActive, w.job))
	if err != nil {
		return false
	}
	job, err := jobOf(r)
	return err == nil && !job.CancelRequested.IsZero()
}

// renew stores a sign, unless another attempt has begun.
func (w *attemptWatch) renew(ctx context.Context) error {
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), renewWithin)
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(renewGrace, cancel) })()
	return w.db.Change(within, func(store transport.StateStore) ([]transport.Operation, error) {
		jobs := jobStore{store, w.db.Endpoint, w.keep}
		job, known, err := jobs.load(within, w.job)
		if err != nil || !known || job.RunID != w.runID || job.Status != Running {
			return nil, err
		}
		job.Renewed = w.db.Now().UTC()
		return nil, jobs.save(within, job)
	})
}

// silent reports whether a job is Running and its attempt has given no sign for 10 minutes. An
// attempt of an older version gives no signs, and is never silent.
func (j *Job) silent(now time.Time) bool {
	return j.Status == Running && !j.Renewed.IsZero() && now.Sub(j.Renewed) >= silentJobAfter
}

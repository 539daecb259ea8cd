package schedule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/internal/strictjson"
	"github.com/holdfast-go/holdfast/saga"
	"github.com/holdfast-go/holdfast/transport"
)

// A job is a record of one of two kinds: it moves to the second when it ends, so that those that
// have not ended are found without a look at the others. The state of one that has ended is in
// Meta: the database keeps no State of it.
const (
	kindActive = "holdfast.jobs"
	kindEnded  = "holdfast.jobs.ended"
	kindPlans  = "holdfast.schedules" // the saga of the schedules

	kindProcesses = "holdfast.schedules.processes" // processes with schedules: see process
)

func nameOf(endpoint, kind, key string) transport.RecordName {
	return transport.RecordName{Kind: stateful.KindOf(endpoint, kind), Key: key}
}

// jobStore reads and writes the jobs of an endpoint in a transaction.
type jobStore struct {
	transport.StateStore
	endpoint string
	keep     time.Duration // of ended jobs
}

// load returns a job, and reports whether it is known.
func (s jobStore) load(ctx context.Context, id string) (job Job, known bool, err error) {
	for _, kind := range []string{kindActive, kindEnded} {
		r, err := s.Load(ctx, saga.ID(s.endpoint, kind, id), nil)
		if errors.Is(err, transport.ErrNoRecord) {
			continue
		}
		if err == nil {
			job, err = jobOf(r)
		}
		return job, err == nil, stateful.Failed(err)
	}
	return Job{}, false, nil
}

// create stores a job that load has not found. It fails with [transport.ErrConflict] if another
// transaction has stored the job since: EnqueueFrom and the first attempt do so at the same time.
func (s jobStore) create(ctx context.Context, job Job) error {
	name := nameOf(s.endpoint, kindActive, job.ID)
	r, err := s.Load(ctx, saga.ID(s.endpoint, kindActive, job.ID), &name)
	if err == nil && r.Version == 0 { // no other transaction stores the job before this one is over
		_, err = s.Load(ctx, saga.ID(s.endpoint, kindEnded, job.ID), nil)
	}
	switch {
	case err == nil:
		err = transport.ErrConflict
	case errors.Is(err, transport.ErrNoRecord):
		return s.save(ctx, job)
	}
	return fmt.Errorf("job %.100q: %w", job.ID, stateful.Failed(err))
}

// save stores a job in place of the state that load has returned in the same transaction, or a job
// with a new id.
func (s jobStore) save(ctx context.Context, job Job) error {
	now, before := kindActive, kindEnded
	if job.Status.Ended() {
		now, before = before, now
		job.NextAttempt = time.Time{}
	}
	if job.Status != Running {
		job.Renewed = time.Time{}
	}
	name := nameOf(s.endpoint, now, job.ID)
	r, err := s.Load(ctx, saga.ID(s.endpoint, now, job.ID), &name)
	if err != nil {
		return fmt.Errorf("job %.100q: %w", job.ID, stateful.Failed(err))
	}
	text, err := json.Marshal(job)
	if err != nil {
		return fmt.Errorf("job %.100q: %w", job.ID, err)
	}
	r.State, r.Status = text, transport.RecordActive
	if job.Status.Ended() {
		r.State, r.Meta, r.Status, r.Keep = nil, text, transport.RecordEnded, s.keep
	}
	if err := s.Save(ctx, r); err != nil {
		return fmt.Errorf("job %.100q: %w", job.ID, stateful.Failed(err))
	}
	if err := s.Remove(ctx, saga.ID(s.endpoint, before, job.ID)); err != nil {
		return fmt.Errorf("job %.100q: %w", job.ID, stateful.Failed(err))
	}
	return nil
}

// active reports whether a job has not ended.
func (s jobStore) active(ctx context.Context, id string) (bool, error) {
	_, err := s.Load(ctx, saga.ID(s.endpoint, kindActive, id), nil)
	if errors.Is(err, transport.ErrNoRecord) {
		return false, nil
	}
	return err == nil, stateful.Failed(err)
}

// jobOf returns the job in a record.
func jobOf(r transport.Record) (job Job, err error) {
	text := r.State
	if r.Status == transport.RecordEnded {
		text = r.Meta
	}
	if err := strictjson.Unmarshal(text, &job); err != nil {
		return job, fmt.Errorf("the record of job %.100q is damaged: %w", r.Name.Key, err)
	}
	return job, nil
}

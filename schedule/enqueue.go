package schedule

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/transport"
)

// Option is an option of Enqueue.
type Option func(*enqueued)

// enqueued is a job that is about to be sent.
type enqueued struct {
	job  Job
	opts []endpoint.SendOption
	tx   any // of the caller

	policy string
}

// At runs the job no earlier than t. A time in the past is now.
func At(t time.Time) Option {
	return func(e *enqueued) { e.job.NextAttempt = t }
}

// After runs the job no earlier than d from now.
func After(d time.Duration) Option {
	return func(e *enqueued) { e.job.NextAttempt = time.Now().Add(d) }
}

// Correlation stores a text with the job, such as the id of an order: valid UTF-8 of at most 1,000
// bytes.
func Correlation(text string) Option {
	return func(e *enqueued) {
		e.job.Correlation = text
		e.opts = append(e.opts, stateful.Header{Name: header.HoldfastJobCorrelation, Value: text})
	}
}

// Policy retries the job by the resilience policy with that name, deferred: one of
// recoverability.Config.Policies or of a rule. An unknown name is an error of Enqueue. Without the
// option, and by a policy with a Timeout alone, the retries are those of any message of its type.
func Policy(name string) Option {
	return func(e *enqueued) {
		e.policy = name
		e.opts = append(e.opts, endpoint.Header(header.HoldfastPolicy, name))
	}
}

// In sends the job in a transaction that the caller ends: see [endpoint.In]. It is for
// [Scheduler.EnqueueFrom].
func In(tx any) Option {
	return func(e *enqueued) { e.tx, e.opts = tx, append(e.opts, endpoint.In(tx)) }
}

// ViaOutbox stores the message in the outbox, so that EnqueueFrom succeeds while the broker is
// away. It is for
// [Scheduler.EnqueueFrom]: the jobs of handlers are stored there anyway.
func ViaOutbox() Option {
	return func(e *enqueued) { e.opts = append(e.opts, endpoint.ViaOutbox()) }
}

// Enqueue sends m, a value of a registered command, to the endpoint's own queue as a job, when all
// handlers of the message have returned nil. The job and its state are committed with what the
// handlers write and send. It returns the id of the job, which is the id of its message.
func (s *Scheduler) Enqueue(ctx context.Context, session *endpoint.Session, m any, opts ...Option) (id string, err error) {
	if !s.applied {
		return "", errNotApplied
	}
	ep, err := s.running(ctx)
	if err != nil {
		return "", fmt.Errorf("enqueue a job of %T: %w", m, err)
	}
	e, err := s.newJob(ep.Endpoint, m, opts)
	if err != nil {
		return "", err
	}
	store, err := s.storeOf(ctx, session)
	if err == nil {
		err = store.save(ctx, e.job)
	}
	if err == nil {
		err = session.SendLocal(ctx, m, e.opts...)
	}
	if err != nil {
		return "", fmt.Errorf("enqueue a job of %T: %w", m, err)
	}
	return e.job.ID, nil
}

// EnqueueFrom is [Scheduler.Enqueue] outside a handler, for instance in a web request. The job has
// a state once EnqueueFrom has returned; with the option [In], once its first attempt has begun.
func (s *Scheduler) EnqueueFrom(ctx context.Context, ep *endpoint.Endpoint, m any, opts ...Option) (id string, err error) {
	e, err := s.newJob(ep, m, opts)
	if err != nil {
		return "", err
	}
	if err := ep.SendLocal(ctx, m, e.opts...); err != nil {
		return "", fmt.Errorf("enqueue a job of %T: %w", m, err)
	}
	if e.tx != nil {
		return e.job.ID, nil
	}
	db, err := ep.Database()
	if err == nil {
		err = db.Change(ctx, func(store transport.StateStore) ([]transport.Operation, error) {
			jobs := jobStore{store, db.Endpoint, s.keep}
			_, known, err := jobs.load(ctx, e.job.ID)
			if err != nil || known { // it runs already
				return nil, err
			}
			return nil, jobs.create(ctx, e.job)
		})
	}
	if err != nil { // the job was sent, and has a state once it runs
		db.Log.WarnContext(ctx, "the state of a job could not be stored before its first attempt", "job", e.job.ID, "error", err)
	}
	return e.job.ID, nil
}

var errNotApplied = errors.New("enqueue: the scheduler belongs to no endpoint: call Apply before endpoint.New")

// newJob returns the job of a message with the options for sending it.
func (s *Scheduler) newJob(ep *endpoint.Endpoint, m any, opts []Option) (*enqueued, error) {
	t := reflect.TypeOf(m)
	switch {
	case !s.applied:
		return nil, errNotApplied
	case ep == nil:
		return nil, errors.New("enqueue: the endpoint is nil")
	case t == nil || t.Kind() == reflect.Pointer && reflect.ValueOf(m).IsNil():
		return nil, errors.New("enqueue: the message is nil")
	case !ep.Handles(m):
		return nil, fmt.Errorf("enqueue a job of %T: the endpoint has no handler for it: add the message to Config.Messages, and a "+
			"handler to Config.Handlers", m)
	}
	now := time.Now()
	e := &enqueued{job: Job{ID: uuid.New(now), Status: Queued, Type: typeOf(m), Created: now.UTC()}}
	for _, opt := range opts {
		opt(e)
	}
	if e.policy != "" {
		p, known := ep.Policy(e.policy)
		if !known {
			return nil, fmt.Errorf("enqueue: there is no policy %.200q: add it to Recoverability.Policies of the endpoint", e.policy)
		}
		if p.Retry.Max != 0 { // otherwise the policy has no Retry, and the endpoint's own retries apply
			e.job.MaxAttempts = p.Retries() + 1
		}
	}
	if text := e.job.Correlation; len(text) > maxError || !utf8.ValidString(text) {
		return nil, fmt.Errorf("enqueue: the correlation %.50q must be valid UTF-8 of at most %d bytes: it has %d", text, maxError, len(text))
	}
	e.job.NextAttempt = e.job.NextAttempt.UTC()
	e.opts = append(e.opts, endpoint.MessageID(e.job.ID), stateful.Header{Name: header.HoldfastJob, Value: e.job.ID})
	if e.job.NextAttempt.After(now) {
		e.opts = append(e.opts, endpoint.At(e.job.NextAttempt), endpoint.TimerName(timerOf(e.job.ID)))
	} else {
		e.job.NextAttempt = time.Time{}
	}
	return e, nil
}

// timerOf is the name of the timer of a job for later.
func timerOf(id string) string { return "holdfast.job " + id }

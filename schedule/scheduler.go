package schedule

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/internal/strictjson"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/saga"
	"github.com/holdfast-go/holdfast/transport"
)

// Config configures a [Scheduler].
type Config struct {
	// Schedules are the schedules of the endpoint. All of its instances have the same.
	Schedules []Schedule
	// Keep is the time for which jobs are kept that have ended. Default: 30 days.
	Keep time.Duration
}

const defaultKeep = 30 * 24 * time.Hour

// Scheduler runs the schedules of an endpoint and keeps the states of its jobs. It belongs to one
// endpoint, and is safe for concurrent use.
type Scheduler struct {
	schedules map[string]*Schedule
	order     []string // their names
	keep      time.Duration
	returned  returnedRuns
	live      atomic.Pointer[host]
	ready     chan struct{} // closed when live is set
	applied   bool
}

// host is the running endpoint of a scheduler. Its name and its log are known when it runs: the
// configuration may change between Apply and endpoint.New.
type host struct {
	*endpoint.Endpoint
	name string
	log  *slog.Logger
}

// New returns a scheduler. It fails with all mistakes in c, joined. Without schedules it keeps the
// states of jobs alone.
func New(c Config) (*Scheduler, error) {
	s := &Scheduler{schedules: map[string]*Schedule{}, keep: cmp.Or(c.Keep, defaultKeep), ready: make(chan struct{})}
	var errs []error
	if c.Keep < 0 {
		errs = append(errs, fmt.Errorf("schedule: Keep is negative: %v; 0 is 30 days", c.Keep))
	}
	for _, given := range c.Schedules {
		errs = append(errs, given.validate())
		if s.schedules[given.Name] != nil {
			errs = append(errs, fmt.Errorf("schedule %.200q: two schedules have that name", given.Name))
		}
		s.schedules[given.Name] = &given
		s.order = append(s.order, given.Name)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return s, nil
}

var errTwice = errors.New("the scheduler belongs to another endpoint already: make one for each endpoint")

// Apply adds to the configuration of an endpoint: its messages, its handlers, behaviors named
// "schedule" in the stages Logical and Recover, and a function of Config.Background. It is called
// once, before [endpoint.New]. The behaviors of the configuration so far are outside of its own.
func (s *Scheduler) Apply(cfg *endpoint.Config) {
	handlers := s.saga().Handlers()
	if s.applied {
		handlers[0] = handlers[0].Stateful(stateful.Declaration{Err: errTwice}) // New of the endpoint reports it
	}
	s.applied = true
	for _, name := range s.order {
		handlers[0] = handlers[0].SendsLocal(s.schedules[name].Message)
	}
	cfg.Messages = append(cfg.Messages[:len(cfg.Messages):len(cfg.Messages)], messages()...)
	cfg.Handlers = append(cfg.Handlers[:len(cfg.Handlers):len(cfg.Handlers)], handlers...)
	cfg.Pipeline.Logical.Use("schedule", s.runJobs)
	cfg.Pipeline.Recover.Use("schedule", s.recoverJobs)
	cfg.Background = append(cfg.Background[:len(cfg.Background):len(cfg.Background)], s.background)
}

// running returns the endpoint, once it is ready: its first messages may be earlier.
func (s *Scheduler) running(ctx context.Context) (*host, error) {
	select {
	case <-s.ready:
		return s.live.Load(), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// now returns the time by the clock of the database.
func (s *Scheduler) now() time.Time {
	if ep := s.live.Load(); ep != nil {
		if db, err := ep.Database(); err == nil {
			return db.Now().UTC()
		}
	}
	return time.Now().UTC()
}

// storeOf returns the jobs in the transaction of a handler.
func (s *Scheduler) storeOf(ctx context.Context, session *endpoint.Session) (jobStore, error) {
	tx, err := session.Tx(ctx)
	if err != nil {
		return jobStore{}, err
	}
	store, ok := transport.TxOf[transport.StateStore](tx)
	if !ok {
		return jobStore{}, errors.New("the transaction of the message stores no jobs")
	}
	return jobStore{store, s.live.Load().name, s.keep}, nil
}

// typeOf returns the name of the Go type of a message.
func typeOf(m any) string { return structOf(reflect.TypeOf(m)).String() }

// structOf returns the type that a pointer type points to, or t.
func structOf(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}

// plansOf is the kind of the records of plans.
func plansOf(endpoint string) string { return nameOf(endpoint, kindPlans, "").Kind }

// planID is the id of the record of a plan.
func planID(endpoint, schedule string) transport.RecordID {
	return saga.ID(endpoint, kindPlans, schedule)
}

// Inspector returns an inspector of the schedules and jobs of ep, which the scheduler belongs to.
// It fails while ep is not running, also before Run: see [endpoint.Endpoint.WaitReady].
func (s *Scheduler) Inspector(ep *endpoint.Endpoint) (*Inspector, error) {
	db, err := ep.Database()
	if err != nil {
		return nil, fmt.Errorf("schedule: %w", err)
	}
	return &Inspector{db.Endpoint, db, s.keep}, nil
}

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

const (
	// comparePause is the time between two comparisons of the schedules with their plans.
	comparePause = 5 * time.Minute
	// lateAfter is the time after which an occurrence that was not started is set again: its
	// time-out may be lost.
	lateAfter = time.Minute
	// pageOfPlans is the number of plans that one statement reads.
	pageOfPlans = 5000
	// endWithin bounds the removal of the record of a process that ends.
	endWithin = 5 * time.Second
)

// background compares the schedules of the process with their plans, at the start and every 5
// minutes.
func (s *Scheduler) background(ctx context.Context, ep *endpoint.Endpoint) {
	db, err := ep.Database()
	if err != nil { // Run would have failed
		db.Log.ErrorContext(ctx, "schedules do not run", slog.Any("error", err))
		return
	}
	if s.live.Swap(&host{ep, db.Endpoint, db.Log}) == nil {
		close(s.ready)
	}
	if len(s.schedules) == 0 {
		return
	}
	var specs []string
	for _, name := range s.order {
		specs = append(specs, hashOf(name, s.schedules[name].spec().text()))
	}
	c := comparison{s, ep, db, newProcess(specs), probes{}}
	defer c.end(ctx)
	pause := backoff.Backoff{Min: time.Second, Max: comparePause}
	for {
		wait := comparePause
		if err := c.run(ctx); err != nil {
			if ctx.Err() != nil {
				return
			}
			wait = pause.Next()
			db.Log.WarnContext(ctx, "schedules could not be compared with their plans in the database: schedules that are new or "+
				"were changed do not run yet", slog.Duration("again", wait), slog.Any("error", err))
		} else {
			pause.Reset()
		}
		if backoff.Sleep(ctx, wait) != nil {
			return
		}
	}
}

// comparison compares the schedules of this process with their plans. Each run of the comparison is
// a sign of the process.
type comparison struct {
	of   *Scheduler
	ep   *endpoint.Endpoint
	db   stateful.Database
	self *process
	sent probes
}

// end removes the record of this process, whose specs no longer count.
func (c *comparison) end(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWithin)
	defer cancel()
	if err := c.self.end(ctx, c.db); err != nil {
		c.db.Log.InfoContext(ctx, "the record of a process with schedules could not be removed: other processes decide on the schedules "+
			"15 minutes after its last comparison", slog.String("process", c.self.ID), slog.Any("error", err))
	}
}

// run sends a message for each schedule whose plan is missing, differs or is late, or whose job has
// not ended for long.
func (c *comparison) run(ctx context.Context) error {
	if err := c.self.renew(ctx, c.db); err != nil {
		return fmt.Errorf("store a sign of the process: %w", err)
	}
	plans, err := plansIn(ctx, c.db, c.db.Endpoint)
	if err != nil {
		return fmt.Errorf("read the plans: %w", err)
	}
	c.db.Warnings.Set("schedule", c.warnings(plans))
	living, err := livingIn(ctx, c.db)
	if err != nil {
		return fmt.Errorf("read the processes: %w", err)
	}
	for _, name := range c.of.order {
		spec := c.of.schedules[name].spec().text()
		now := c.db.Now().UTC()
		m := ensureSchedule{Schedule: name, Spec: spec, Since: c.self.Began, Process: c.self.ID, Sent: now}
		p, known := plans[name]
		if known && p.Spec == spec {
			m.Job = c.sent.next(c.of.schedules[name], &p, now)
		}
		if known && m.Job == "" && !c.self.decides(name, &p, spec, living) && (p.Spec != spec || !p.late(now)) {
			continue
		}
		if err := c.ep.SendLocal(ctx, m); err != nil {
			delete(c.sent, name) // the probe was not sent
			return fmt.Errorf("schedule %q: %w", name, err)
		}
	}
	return nil
}

// warnings returns the warnings about the schedules of this process.
func (c *comparison) warnings(plans map[string]plan) (all []string) {
	for _, name := range c.of.order {
		p := plans[name]
		if warning := p.warning(name); warning != "" {
			all = append(all, warning)
		}
	}
	return all
}

// decides reports whether a plan is to have the spec and the name of this process. Of the living
// processes that have the spec of the plan the last one counts: the plan may name another, also a
// silent one.
func (p *process) decides(schedule string, of *plan, spec string, living []process) bool {
	named := false
	for i := range living {
		other := &living[i]
		if other.ID == p.ID || !other.has(schedule, of.Spec) {
			continue
		}
		named = named || other.ID == of.Process
		if other.compare(p) > 0 {
			return false
		}
	}
	if of.Spec == spec {
		return of.Process != p.ID && !named
	}
	return true
}

// late reports whether the next occurrence of a plan may be lost.
func (p *plan) late(now time.Time) bool {
	return p.Next.IsZero() || // an occurrence of After runs, or its end is lost
		now.Sub(p.Next) > lateAfter
}

// plansIn returns the plans that have not ended, by schedule.
func plansIn(ctx context.Context, db transport.StateInspector, endpoint string) (map[string]plan, error) {
	plans := map[string]plan{}
	page := transport.RecordPage{Kind: plansOf(endpoint), Limit: pageOfPlans}
	for {
		records, err := db.Records(ctx, page)
		if err != nil {
			return nil, err
		}
		for _, r := range records {
			if r.Status != transport.RecordActive {
				continue
			}
			var p plan
			if err := strictjson.Unmarshal(r.State, &p); err != nil {
				return nil, fmt.Errorf("the plan of schedule %q is damaged: %w", r.Name.Key, err)
			}
			plans[r.Name.Key] = p
		}
		if len(records) < page.Limit {
			return plans, nil
		}
		page.After = records[len(records)-1].Name.Key
	}
}

package schedule

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/cron"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/saga"
	"github.com/holdfast-go/holdfast/transport"
)

// plan is the state of a schedule in the database: an instance of a saga.
type plan struct {
	Spec  string    // see spec
	Since time.Time // when the process began that set Spec, by the clock of the database
	// Process is the id of the process whose spec the plan has. A process of an older version
	// leaves Process as it is.
	Process string `json:",omitempty"`

	First time.Time // where the grid of Every begins
	Due   time.Time // of the last occurrence that was started, skipped or missed
	Next  time.Time // of the next occurrence; zero while an occurrence of After runs

	State   State     // paused or not
	Current string    `json:",omitempty"` // the job that was started last, until it has ended
	Began   time.Time `json:",omitzero"`  // when Current was started; an older version does not set it
	Last    Outcome

	Missed, Skipped, Paused int // occurrences that were not run

	Behind behind `json:",omitzero"`
	Probe  probe  `json:",omitzero"`

	Unknown time.Time `json:",omitzero"` // since when no process that handled the plan knows the schedule
}

// behind counts the occurrences that were skipped in a row because a job has not ended.
type behind struct {
	Job   string
	Count int
}

// warnBehind is the number of such occurrences from which on there is a warning.
const warnBehind = 3

// warning returns a warning about occurrences that were skipped, or "".
func (p *plan) warning(schedule string) string {
	if p.Current == "" || p.Behind.Job != p.Current || p.Behind.Count < warnBehind {
		return ""
	}
	return fmt.Sprintf("schedule %q: the last %d occurrences were skipped, because job %s has not ended", schedule, p.Behind.Count, p.Current)
}

// State is the state of a schedule.
type State string

// The states of a schedule.
const (
	Active State = "Active"
	Paused State = "Paused" // its occurrences are counted, and not run
)

// Outcome is how an occurrence ended. The zero Outcome is none.
type Outcome struct {
	Job    string    `json:"job,omitempty"`
	Due    time.Time `json:"due,omitzero"`
	Status Status    `json:"status,omitempty"`
	Ended  time.Time `json:"ended,omitzero"`
}

// timeoutNext is the name of the time-out of the next occurrence.
const timeoutNext = "next"

// step is a plan while a message for it is handled.
type step struct {
	*saga.Context[plan]
	s    *Scheduler
	spec spec
	now  time.Time // by the clock of the database
}

type planContext = saga.Context[plan]

// saga returns the saga of the plans.
func (s *Scheduler) saga() *saga.Saga[plan] {
	ignore := func(context.Context, *endpoint.Session, runSchedule) error { return nil }
	return saga.New(kindPlans,
		saga.Start(func(m ensureSchedule) string { return m.Schedule }, s.ensure),
		saga.OnTimeout(s.due),
		saga.On(func(m occurrenceEnded) string { return m.Schedule }, s.ended).OrElse(nil),
		saga.On(func(m runSchedule) string { return m.Schedule }, s.run).OrElse(ignore),
	).Restarts()
}

// step reads the plan.
func (s *Scheduler) step(ctx context.Context, c *planContext) (step, error) {
	if _, err := s.running(ctx); err != nil {
		return step{}, err
	}
	parsed, err := parseSpec(c.State.Spec)
	return step{c, s, parsed, s.now()}, err
}

// ensure brings a plan up to date, and searches for its job if the message is a probe.
func (s *Scheduler) ensure(ctx context.Context, c *planContext, m ensureSchedule) error {
	if err := s.update(ctx, c, m); err != nil || m.Job == "" {
		return err
	}
	p, err := s.step(ctx, c)
	if err != nil {
		return err
	}
	return p.search(ctx, m)
}

// update begins a plan, or gives it a new spec. A process that began before the living one whose
// spec the plan has changes nothing: otherwise two versions of a program would change it in turn.
func (s *Scheduler) update(ctx context.Context, c *planContext, m ensureSchedule) error {
	if _, err := s.running(ctx); err != nil {
		return err
	}
	store, err := s.storeOf(ctx, c.Session)
	if err != nil {
		return err
	}
	holder, err := livingHolder(ctx, store, c.Key(), &c.State, s.now())
	if err != nil {
		return err
	}
	begins, changed := c.State.Spec == "", m.Spec != c.State.Spec
	switch sender := (&process{ID: m.Process, Began: m.Since}); {
	case holder == nil:
		c.State.Process, c.State.Since = m.Process, m.Since
	case changed && (m.Process == "" || sender.compare(holder) < 0): // an older version gives no sign and does not count
		return nil
	case changed:
		c.State.Process, c.State.Since = m.Process, m.Since
	}
	c.State.Spec, c.State.Unknown = m.Spec, time.Time{}
	p, err := s.step(ctx, c)
	if err != nil {
		return err
	}
	if begins {
		c.State.State, c.State.First, c.State.Due = Active, p.now.Add(p.spec.Every), p.now
	}
	switch {
	case p.spec.After > 0:
		return p.ensureAfter(ctx, changed)
	case changed:
		if !begins {
			c.State.First = p.now.Add(p.spec.Every)
		}
		return p.plan(ctx, later(c.State.Due, p.now))
	case c.State.Next.IsZero():
		return p.plan(ctx, c.State.Due)
	}
	return p.set(ctx, c.State.Next) // its time-out may be lost
}

// ensureAfter sets the next time of a schedule whose last occurrence has ended.
func (p step) ensureAfter(ctx context.Context, changed bool) error {
	switch active, err := p.currentActive(ctx); {
	case err != nil:
		return err
	case active:
		return p.set(ctx, time.Time{})
	case changed || p.State.Next.IsZero():
		return p.set(ctx, p.afterRun())
	}
	return p.set(ctx, p.State.Next)
}

// afterRun returns the next time of a schedule with After. The time is later than the last one also
// if the clock was set back: the id of an occurrence is derived from its time.
func (p step) afterRun() time.Time { return later(p.now, p.State.Due).Add(p.spec.After) }

// due starts the occurrence that is due.
func (s *Scheduler) due(ctx context.Context, c *planContext, m scheduleDue) error {
	p, err := s.step(ctx, c)
	if err != nil {
		return err
	}
	if s.schedules[c.Key()] == nil {
		return p.unknown(ctx)
	}
	c.State.Unknown = time.Time{}
	if p.spec.After > 0 {
		c.State.Due = c.State.Next
		started, err := p.occur(ctx, c.State.Next)
		if err != nil || started {
			c.State.Next = time.Time{} // until it has ended
			return err
		}
		return p.set(ctx, p.afterRun())
	}
	return p.dueOnGrid(ctx)
}

// catchUpPause is the time between two looks at whether the run has ended that the next of CatchUp
// waits for.
const catchUpPause = time.Second

// dueOnGrid starts the occurrence of a Cron or an Every, or those that were missed.
func (p step) dueOnGrid(ctx context.Context) error {
	t, err := p.spec.times()
	if err != nil {
		return err
	}
	next := func(after time.Time) time.Time { return t.next(p.State.First, after) }
	before := p.State.Next.Add(-time.Nanosecond) // the occurrence that is due is the first after that
	backlog := cron.Missed(next, before, later(p.now, p.State.Next), maxCatchUp)
	due := backlog.Missed
	if p.spec.Missed == CatchUp && p.spec.Overlap == SkipOverlap {
		if active, err := p.currentActive(ctx); err != nil || active {
			return errors.Join(err, p.SetTimeout(ctx, timeoutNext, scheduleDue{p.Key()}, endpoint.After(catchUpPause)))
		}
	}
	p.State.Due = p.State.Next
	switch n := len(due); {
	case n <= 1:
	case p.spec.Missed == CatchUp:
		if backlog.Dropped {
			p.State.Missed++ // and others: their number is not computed
		}
		due = due[:1]
	case p.spec.Missed == SkipMissed:
		p.State.Missed += n
		p.State.Due, due = due[n-1], nil
	default:
		p.State.Missed += n - 1
		p.State.Due, due = due[n-1], due[n-1:]
	}
	for _, at := range due {
		p.State.Due = at
		if _, err := p.occur(ctx, at); err != nil {
			return err
		}
	}
	return p.plan(ctx, p.State.Due)
}

// plan sets the next time after a time.
func (p step) plan(ctx context.Context, after time.Time) error {
	t, err := p.spec.times()
	if err != nil {
		return err
	}
	return p.set(ctx, t.next(p.State.First, after))
}

// set sets the next time, or none for the zero Time.
func (p step) set(ctx context.Context, next time.Time) error {
	p.State.Next = next
	if next.IsZero() {
		return p.CancelTimeout(ctx, timeoutNext)
	}
	return p.SetTimeout(ctx, timeoutNext, scheduleDue{p.Key()}, endpoint.After(max(0, next.Sub(p.now))))
}

// occur starts an occurrence, unless the schedule is paused or the last one has not ended. It
// reports whether it did.
func (p step) occur(ctx context.Context, due time.Time) (started bool, err error) {
	if p.State.State == Paused {
		p.State.Paused++
		return false, nil
	}
	id := occurrenceID(p.s.live.Load().name, p.Key(), due.UTC().Format(time.RFC3339Nano))
	if p.spec.Overlap == SkipOverlap {
		active, err := p.currentActive(ctx)
		if err != nil {
			return false, err
		}
		if active {
			return false, p.skip(ctx, id, due)
		}
	}
	return true, p.start(ctx, id, due)
}

// start sends the message of an occurrence, with its job.
func (p step) start(ctx context.Context, id string, due time.Time) error {
	p.State.Current, p.State.Began = id, p.now
	of := p.s.schedules[p.Key()]
	job := Job{ID: id, Schedule: p.Key(), Due: due, Status: Queued, Type: typeOf(of.Message), Created: p.now}
	if err := p.save(ctx, job); err != nil {
		return err
	}
	return p.send(ctx, id, due)
}

// skip records an occurrence that is not run.
func (p step) skip(ctx context.Context, id string, due time.Time) error {
	p.State.Skipped++
	if p.State.Behind.Job != p.State.Current { // an older version does not count
		p.State.Behind = behind{Job: p.State.Current}
	}
	p.State.Behind.Count++
	p.outcome(Outcome{id, due, Skipped, p.now})
	return p.save(ctx, Job{ID: id, Schedule: p.Key(), Due: due, Status: Skipped, Created: p.now, Ended: p.now})
}

func (p step) save(ctx context.Context, job Job) error {
	store, err := p.s.storeOf(ctx, p.Session)
	if err != nil {
		return err
	}
	return store.save(ctx, job)
}

// currentActive reports whether the job that was started last has not ended.
func (p step) currentActive(ctx context.Context) (bool, error) {
	if p.State.Current == "" {
		return false, nil
	}
	store, err := p.s.storeOf(ctx, p.Session)
	if err != nil {
		return false, err
	}
	active, err := store.active(ctx, p.State.Current)
	if err == nil && !active {
		p.State.Current = ""
	}
	return active, err
}

// ended records the end of an occurrence.
func (s *Scheduler) ended(ctx context.Context, c *planContext, m occurrenceEnded) error {
	p, err := s.step(ctx, c)
	if err != nil {
		return err
	}
	return p.end(ctx, Outcome{m.Job, m.Due, Status(m.Status), p.now})
}

// end ends an occurrence.
func (p step) end(ctx context.Context, o Outcome) error {
	p.outcome(o)
	if p.State.Current != o.Job {
		return nil
	}
	p.State.Current = ""
	if p.spec.After > 0 {
		return p.set(ctx, p.afterRun())
	}
	return nil
}

// outcome stores the outcome of an occurrence, unless the outcome of a later one is known.
func (p step) outcome(o Outcome) {
	if !o.Due.Before(p.State.Last.Due) {
		p.State.Last = o
	}
}

// run starts an occurrence now. The plan stays as it is.
func (s *Scheduler) run(ctx context.Context, c *planContext, _ runSchedule) error {
	p, err := s.step(ctx, c)
	if err != nil {
		return err
	}
	if s.schedules[c.Key()] == nil {
		return fmt.Errorf("schedule %q is not one of this process: another instance may know it", c.Key())
	}
	current, began := c.State.Current, c.State.Began
	err = p.start(ctx, occurrenceID(s.live.Load().name, c.Key(), c.MessageID()), p.now)
	if current != "" || p.spec.After > 0 && !c.State.Next.IsZero() {
		c.State.Current, c.State.Began = current, began
	}
	return err
}

const (
	unknownPause = time.Minute
	maxPause     = time.Hour
	maxUnknown   = 24 * time.Hour
)

// unknown handles the time-out of a schedule that the process does not know: the program may have
// been deployed anew without it, or this process is an old one. Another process may know it.
func (p step) unknown(ctx context.Context) error {
	if p.State.Unknown.IsZero() {
		p.State.Unknown = p.now
	}
	since := p.now.Sub(p.State.Unknown)
	log := slog.String("schedule", p.Key())
	if since >= maxUnknown {
		p.s.live.Load().log.InfoContext(ctx, "a schedule is removed: no process has known it for a day", log)
		p.Complete()
		return nil
	}
	p.s.live.Load().log.WarnContext(ctx, "a schedule is due that this process does not know: if the schedule was removed, "+
		"it is forgotten a day after the last process that knows it", log, slog.Duration("unknown", since))
	pause := min(max(unknownPause, since/2), maxPause)
	return p.SetTimeout(ctx, timeoutNext, scheduleDue{p.Key()}, endpoint.After(pause))
}

// occurrenceID returns the id of the message of an occurrence: a UUID of version 8 (RFC 9562).
func occurrenceID(endpoint, schedule, occurrence string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", endpoint, schedule, occurrence))
	id := transport.RecordID(sum[:16])
	id[6] = id[6]&0x0f | 0x80
	id[8] = id[8]&0x3f | 0x80
	return uuid.Text(id)
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

package schedule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/envelope"
	"github.com/holdfast-go/holdfast/internal/jsonmembers"
	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/internal/strictjson"
	"github.com/holdfast-go/holdfast/internal/timer"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/saga"
	"github.com/holdfast-go/holdfast/transport"
)

// Inspector looks at the schedules and jobs of an endpoint, and changes them, from any process that
// reaches its database. It is safe for concurrent use.
type Inspector struct {
	endpoint string
	db       stateful.Database
	keep     time.Duration // of jobs that it ends
}

// Inspect returns an inspector of the schedules and jobs of the endpoint with a name, in the
// database that conn is connected to. It fails where the database stores no records. A job that it
// cancels is kept for 30 days, whatever [Config].Keep says.
func Inspect(conn transport.Conn, endpoint string) (*Inspector, error) {
	db, err := stateful.DatabaseOn(conn)
	if err != nil {
		return nil, fmt.Errorf("schedule: %w", err)
	}
	return &Inspector{endpoint, db, defaultKeep}, nil
}

// Snapshot is the state of the schedules and of the jobs that have not ended.
type Snapshot struct {
	At        time.Time `json:"at"` // by the clock of the database
	Schedules []Info    `json:"schedules"`
	// Jobs are jobs that have not ended, by id: the first MaxJobs of them.
	Jobs []Job `json:"jobs"`
	// Active is the number of jobs that have not ended. Where it is larger than MaxJobs it may be
	// an estimate.
	Active int64 `json:"active"`
}

// MaxJobs is the largest number of jobs in a [Snapshot].
const MaxJobs = 100

// Info is the state of a schedule.
type Info struct {
	Name  string `json:"name"`
	Times string `json:"times"` // for people
	State State  `json:"state"`
	// Next is the time of the next occurrence; zero while a run of a schedule with After has not
	// ended.
	Next time.Time `json:"next,omitzero"`
	// Current is the job that has not ended, if any, and Last the last outcome.
	Current string  `json:"current,omitempty"`
	Last    Outcome `json:"last,omitzero"`
	// Missed, Skipped and Paused are the numbers of occurrences that were not run: they were
	// missed, overlapped, or were due while the schedule was paused.
	Missed  int `json:"missed"`
	Skipped int `json:"skipped"`
	Paused  int `json:"paused"`
	// Warning says that occurrences were skipped behind one job for three intervals or more; "" is
	// none.
	Warning string `json:"warning,omitempty"`
}

// Snapshot returns the state of all schedules, in the order of their names, and of jobs.
func (i *Inspector) Snapshot(ctx context.Context) (Snapshot, error) {
	snapshot := Snapshot{At: i.db.Now().UTC()}
	plans, err := plansIn(ctx, i.db, i.endpoint)
	if err != nil {
		return snapshot, i.failed("read the schedules", err)
	}
	for name, p := range plans {
		snapshot.Schedules = append(snapshot.Schedules, p.info(name))
	}
	slices.SortFunc(snapshot.Schedules, func(a, b Info) int { return strings.Compare(a.Name, b.Name) })
	if snapshot.Jobs, err = i.jobs(ctx, kindActive, "", MaxJobs); err != nil {
		return snapshot, err
	}
	snapshot.Active = int64(len(snapshot.Jobs))
	if len(snapshot.Jobs) == MaxJobs { // jobs that have ended are not counted: some databases read all of them
		stats, err := i.db.InspectRecords(ctx, nameOf(i.endpoint, kindActive, "").Kind)
		if err != nil {
			return snapshot, i.failed("count the jobs", err)
		}
		snapshot.Active = max(snapshot.Active, stats.Active)
	}
	return snapshot, nil
}

func (p plan) info(name string) Info {
	info := Info{
		Name: name, State: p.State, Next: p.Next, Current: p.Current, Last: p.Last,
		Missed: p.Missed, Skipped: p.Skipped, Paused: p.Paused, Warning: p.warning(name),
	}
	if s, err := parseSpec(p.Spec); err == nil {
		info.Times = s.String()
	}
	return info
}

// Jobs returns a page of jobs that have not ended, or that have, in the order of their ids: at most
// limit of those behind after, where "" begins.
func (i *Inspector) Jobs(ctx context.Context, ended bool, after string, limit int) ([]Job, error) {
	if ended {
		return i.jobs(ctx, kindEnded, after, limit)
	}
	return i.jobs(ctx, kindActive, after, limit)
}

func (i *Inspector) jobs(ctx context.Context, kind, after string, limit int) ([]Job, error) {
	page := transport.RecordPage{Kind: nameOf(i.endpoint, kind, "").Kind, After: after, Limit: limit}
	records, err := i.db.Records(ctx, page)
	if err != nil {
		return nil, i.failed("list the jobs", err)
	}
	jobs := make([]Job, 0, len(records))
	for _, r := range records {
		job, err := jobOf(r)
		if err != nil {
			return jobs, i.failed("list the jobs", err)
		}
		jobs = append(jobs, job)
	}
	return jobs, nil
}

// Job returns the job with an id. It reports false for one that is unknown, or ended longer ago
// than [Config].Keep.
func (i *Inspector) Job(ctx context.Context, id string) (job Job, known bool, err error) {
	for _, kind := range []string{kindActive, kindEnded, kindActive} { // it may end, or run again, between two of these
		r, err := i.db.Record(ctx, saga.ID(i.endpoint, kind, id))
		if errors.Is(err, transport.ErrNoRecord) {
			continue
		}
		if err == nil {
			job, err = jobOf(r)
		}
		if err != nil {
			return Job{}, false, i.failed(fmt.Sprintf("read job %.100q", id), err)
		}
		return job, true, nil
	}
	return Job{}, false, nil
}

// Cancel cancels a job. One that is queued or waits for a retry is Cancelled at once. The context
// of a handler that runs ends within 5 seconds: if the handler then returns an error, the job is
// Cancelled, otherwise it has succeeded. A Running job whose process has given no sign for 10
// minutes is Cancelled at once: its process or its message is gone. Cancel reports false for a job
// that is unknown or has ended.
func (i *Inspector) Cancel(ctx context.Context, id string) (cancelled bool, err error) {
	err = i.db.Change(ctx, func(store transport.StateStore) ([]transport.Operation, error) {
		jobs := jobStore{store, i.endpoint, i.keep}
		job, known, err := jobs.load(ctx, id)
		cancelled = known && err == nil && !job.Status.Ended()
		if !cancelled {
			return nil, err
		}
		now := i.db.Now().UTC()
		job.CancelRequested = now
		var ops []transport.Operation
		if job.Status != Running || job.silent(now) {
			if job.Status == Queued && !job.NextAttempt.IsZero() {
				ops = append(ops, transport.Operation{Queue: i.outbox(), Name: timer.Name{Name: timerOf(id)}.Text()})
			}
			if job.Schedule != "" {
				ended := occurrenceEnded{job.Schedule, job.ID, job.Due, string(Cancelled)}
				op, err := i.message("Holdfast.Schedule.Ended", ended)
				if err != nil {
					return nil, err
				}
				ops = append(ops, op)
			}
			job.endAttempt(AttemptInterrupted, "", time.Time{})
			job.Status, job.Ended = Cancelled, now
		}
		return ops, jobs.save(ctx, job)
	})
	return cancelled && err == nil, i.failed(fmt.Sprintf("cancel job %.100q", id), err)
}

// ErrUnknownSchedule is returned for a schedule that has no plan in the database.
var ErrUnknownSchedule = errors.New("there is no such schedule")

// SetState pauses a schedule, or lets it go on. It fails with [ErrUnknownSchedule].
func (i *Inspector) SetState(ctx context.Context, schedule string, state State) error {
	if state != Active && state != Paused {
		return fmt.Errorf("schedule %.200q: the state %.50q is neither %s nor %s", schedule, state, Active, Paused)
	}
	err := i.db.Change(ctx, func(store transport.StateStore) ([]transport.Operation, error) {
		r, err := i.plan(ctx, store, schedule)
		if err != nil {
			return nil, err
		}
		var p plan
		if err := strictjson.Unmarshal(r.State, &p); err != nil {
			return nil, fmt.Errorf("its plan is damaged: %w", err)
		}
		if p.State == state {
			return nil, nil
		}
		before, err := json.Marshal(p)
		if err != nil {
			return nil, err
		}
		p.State = state
		text, err := json.Marshal(p)
		if err != nil {
			return nil, err
		}
		r.State = planMembers.Keep(r.State, before, text) // a newer program may have more fields
		return nil, store.Save(ctx, r)
	})
	return i.failed(fmt.Sprintf("schedule %.200q", schedule), err)
}

var planMembers = jsonmembers.Of(reflect.TypeFor[plan]())

// Run starts an occurrence of a schedule now. The plan stays as it is. It fails with
// [ErrUnknownSchedule].
func (i *Inspector) Run(ctx context.Context, schedule string) error {
	err := i.db.Change(ctx, func(store transport.StateStore) ([]transport.Operation, error) {
		if _, err := i.plan(ctx, store, schedule); err != nil {
			return nil, err
		}
		op, err := i.message(runScheduleType, runSchedule{schedule})
		return []transport.Operation{op}, err
	})
	return i.failed(fmt.Sprintf("schedule %.200q", schedule), err)
}

// plan loads the plan of a schedule.
func (i *Inspector) plan(ctx context.Context, store transport.StateStore, schedule string) (transport.Record, error) {
	r, err := store.Load(ctx, planID(i.endpoint, schedule), nil)
	if errors.Is(err, transport.ErrNoRecord) || err == nil && r.Status != transport.RecordActive {
		return r, ErrUnknownSchedule
	}
	return r, err
}

// message returns the operation that stores a message to the endpoint's own queue in its outbox,
// from which an instance sends it.
func (i *Inspector) message(name string, m any) (transport.Operation, error) {
	now := i.db.Now()
	body, err := json.Marshal(m)
	if err != nil {
		return transport.Operation{}, err
	}
	id := uuid.New(now)
	h := header.New(
		header.Field{Name: header.MessageID, Value: id}, header.Field{Name: header.MessageIntent, Value: header.IntentSend},
		header.Field{Name: header.EnclosedMessageTypes, Value: name},
		header.Field{Name: header.ContentType, Value: "application/json"},
		header.Field{Name: header.TimeSent, Value: header.FormatTime(now)},
	)
	op := transport.Operation{Queue: i.endpoint, Message: &transport.Message{ID: id, Headers: h, Body: body}}
	stored := envelope.Encode([]transport.Operation{op}, now, 0)[0]
	return transport.Operation{Queue: i.outbox(), Message: &transport.Message{ID: uuid.New(now), Body: stored}}, nil
}

// outbox is the queue of the endpoint's outbox and timers.
func (i *Inspector) outbox() string { return i.endpoint + ".outbox" }

func (i *Inspector) failed(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, transport.ErrNoQueue):
		return fmt.Errorf("%s: endpoint %q: %w: has the endpoint run with schedules or jobs on this database?", what, i.endpoint, err)
	}
	return fmt.Errorf("%s: endpoint %q: %w", what, i.endpoint, err)
}

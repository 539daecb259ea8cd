package schedule

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/internal/strictjson"
	"github.com/holdfast-go/holdfast/transport"
)

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

package schedule

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/strictjson"
	"github.com/holdfast-go/holdfast/transport"
)

const (
	// comparePause is the time between two comparisons of the schedules with their plans.
	comparePause = 5 * time.Minute
	// lateAfter is the time after which an occurrence that was not started is set again: its time-out may be lost.
	lateAfter = time.Minute
	// pageOfPlans is the number of plans that one statement reads.
	pageOfPlans = 5000
)

// background compares the schedules of the process with their plans, at the start and every 5 minutes.
func (s *Scheduler) background(ctx context.Context, ep *endpoint.Endpoint) {
	if s.live.Swap(ep) == nil {
		close(s.ready)
	}
	if len(s.schedules) == 0 {
		return
	}
	pause := backoff.Backoff{Min: time.Second, Max: comparePause}
	for {
		wait := comparePause
		if err := s.compare(ctx, ep); err != nil {
			if ctx.Err() != nil {
				return
			}
			wait = pause.Next()
			s.log.WarnContext(ctx, "schedules could not be compared with their plans in the database: schedules that are new or "+
				"were changed do not run yet", slog.Duration("again", wait), slog.Any("error", err))
		} else {
			pause.Reset()
		}
		if backoff.Sleep(ctx, wait) != nil {
			return
		}
	}
}

// compare sends a message for each schedule whose plan is missing, differs or is late.
func (s *Scheduler) compare(ctx context.Context, ep *endpoint.Endpoint) error {
	db, err := ep.Database()
	if err != nil {
		return err
	}
	plans, err := plansIn(ctx, db, s.endpoint)
	if err != nil {
		return fmt.Errorf("read the plans: %w", err)
	}
	for _, name := range s.order {
		spec := s.schedules[name].spec().text()
		if p, known := plans[name]; known && !s.differs(p, spec, db.Now()) {
			continue
		}
		if err := ep.SendLocal(ctx, ensureSchedule{name, spec, s.began.UTC()}); err != nil {
			return fmt.Errorf("schedule %q: %w", name, err)
		}
	}
	return nil
}

// differs reports whether a plan needs the message ensureSchedule.
func (s *Scheduler) differs(p plan, spec string, now time.Time) bool {
	switch {
	case p.Spec != spec:
		return !s.began.Before(p.Since)
	case p.Next.IsZero():
		return true // an occurrence of After runs, or its end is lost
	}
	return now.Sub(p.Next) > lateAfter
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

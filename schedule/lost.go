package schedule

import (
	"context"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/stateful"
)

// The message of an occurrence may be lost: its queue was emptied or made anew. Then the job of the
// occurrence does not end, and its schedule runs no more. The search for such a job takes two
// probes, which are messages to the endpoint's own queue.
//
//   - The first is sent when no attempt has begun, or no attempt has given a sign, for long enough. The queue delivers messages in
//     the order in which they were sent, so the message of the job was delivered before the probe is.
//   - Between the two a message returns to the queue whose receiver is gone.
//
// If nothing has happened to the job at the second probe, and the message waits nowhere else, the
// message is lost. The schedule sends the message again, under its id: an endpoint with an inbox
// commits its effects once, if the first message is found after all. An endpoint without an inbox
// gives the occurrence up.

const (
	// lostAfter is the time without an attempt, or without a sign of one, after which a job is
	// searched for.
	lostAfter = 10 * time.Minute
	// probeGrace is the least time between the two probes.
	probeGrace = 5 * time.Minute
	// probeAgain is the time after which a process sends a probe again that was not handled: a long
	// queue should not get longer.
	probeAgain = time.Hour
	// sendAgain is the time between two messages for one job.
	sendAgain = time.Hour
)

// probe is the state of the search for the current job of a plan.
type probe struct {
	Job    string
	Quiet  time.Time // since when nothing has happened to the job: see quietSince
	Seen   time.Time // when the last probe was handled
	Marked time.Time `json:",omitzero"` // when the first probe was handled
	Resent time.Time `json:",omitzero"` // when the message was sent again
}

// quietSince returns the time from which on an attempt at the job was to begin, or the time of the
// last sign of an attempt. It returns the zero Time for an attempt of an older version, which gives
// no signs: nothing is known about such a job.
func (j *Job) quietSince() time.Time {
	switch j.Status {
	case Queued:
		return later(j.Created, j.NextAttempt)
	case WaitingRetry:
		return j.NextAttempt
	case Running:
		return j.Renewed
	case Succeeded, Failed, Cancelled, Skipped, Lost:
	}
	return time.Time{}
}

// probes are the probes that this process has sent, by schedule.
type probes map[string]sentProbe

type sentProbe struct {
	job string
	at  time.Time
}

// next returns the job for which a probe is to be sent now, or "". A process sends one probe at a
// time for a schedule.
func (ps probes) next(of *Schedule, p *plan, now time.Time) (job string) {
	if p.Current == "" || of.After == 0 && of.Overlap == AllowOverlap || now.Sub(p.Began) < lostAfter {
		return ""
	}
	last := ps[of.Name]
	handled := p.Probe.Job == p.Current && !p.Probe.Seen.Before(last.at)
	if last.job == p.Current && !handled && now.Sub(last.at) < probeAgain {
		return ""
	}
	ps[of.Name] = sentProbe{p.Current, now}
	return p.Current
}

// search handles a probe for the current job.
func (p step) search(ctx context.Context, m ensureSchedule) error {
	of := p.s.schedules[p.Key()]
	if m.Job != p.State.Current || of == nil {
		return nil
	}
	store, err := p.s.storeOf(ctx, p.Session)
	if err != nil {
		return err
	}
	job, known, err := store.load(ctx, m.Job)
	if err != nil || !known || job.Status.Ended() { // currentActive finds the end of the job
		return err
	}
	ep, err := p.s.running(ctx)
	if err != nil {
		return err
	}
	db, err := ep.Database()
	if err != nil {
		return err
	}
	last, now := p.State.Probe, probe{Job: job.ID, Quiet: job.quietSince(), Seen: p.now}
	if last.Job == job.ID {
		now.Resent = last.Resent
	}
	if last.Job == job.ID && last.Quiet.Equal(now.Quiet) {
		now.Marked = last.Marked
	}
	p.State.Probe = now
	switch quiet := later(now.Quiet, now.Resent); {
	case now.Quiet.IsZero():
	case m.Sent.Before(quiet.Add(lostAfter + db.Redelivery)): // the message of the job may be behind the probe
	case now.Marked.IsZero(), !isCalm(ep.Health()): // the message may wait outside of the queue
		p.State.Probe.Marked = p.now
	case p.now.Sub(now.Marked) < max(probeGrace, db.Redelivery):
	case !db.Inbox:
		return p.giveUp(ctx, store, job)
	case p.now.Sub(now.Resent) >= sendAgain:
		p.State.Probe.Resent, p.State.Probe.Marked = p.now, time.Time{}
		p.s.live.Load().log.WarnContext(ctx, "the message of an occurrence is lost: it is sent again", slog.String("schedule", p.Key()),
			slog.String("job", job.ID), slog.String("status", string(job.Status)))
		return p.send(ctx, job.ID, job.Due)
	}
	return nil
}

// send sends the message of an occurrence.
func (p step) send(ctx context.Context, id string, due time.Time) error {
	return p.SendLocal(ctx, p.s.schedules[p.Key()].Message, endpoint.MessageID(id), stateful.Header{Name: header.HoldfastJob, Value: id},
		stateful.Header{Name: header.HoldfastJobSchedule, Value: p.Key()},
		stateful.Header{Name: header.HoldfastJobDue, Value: due.UTC().Format(time.RFC3339Nano)},
		endpoint.Header(header.OriginatingSagaID, ""), endpoint.Header(header.OriginatingSagaType, "")) // replies are not for the plan
}

// giveUp ends a job whose message is lost. The next occurrence runs.
func (p step) giveUp(ctx context.Context, store jobStore, job Job) error {
	p.s.live.Load().log.WarnContext(ctx, "the message of an occurrence is lost, and the occurrence is given up: an endpoint with Config.Remember "+
		"sends it again", slog.String("schedule", p.Key()), slog.String("job", job.ID), slog.String("status", string(job.Status)))
	job.endAttempt(AttemptInterrupted, "", time.Time{})
	job.Status, job.Ended = Lost, p.now
	if err := store.save(ctx, job); err != nil {
		return err
	}
	p.State.Probe = probe{}
	return p.end(ctx, Outcome{job.ID, job.Due, Lost, p.now})
}

// isCalm reports whether no message of the endpoint waits in its outbox or its quarantine, as far
// as this process knows, and the process receives.
func isCalm(h endpoint.Health) bool {
	if !h.Ready || h.Quarantined != 0 {
		return false
	}
	if h.Outbox == nil {
		return true
	}
	for _, waiting := range h.Outbox.Waiting {
		if waiting.Destination == h.Endpoint {
			return false
		}
	}
	return h.Outbox.Ready >= 0 && h.Outbox.Oldest < time.Minute
}

package schedule_test

import (
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/schedule"
)

// ending checks the end of a history.
type ending struct{ *history }

// checkJobs checks the records of all jobs, and the numbers of the plan.
func (h ending) checkJobs() {
	active, ended := h.all(false), h.all(true)
	ids := map[string]bool{}
	for i := range active {
		ids[active[i].ID] = true
		h.checkActive(&active[i])
	}
	var occurrences []schedule.Job
	skipped := 0
	for i := range ended {
		job := &ended[i]
		if ids[job.ID] {
			h.Errorf("job %s has ended and has not", job.ID)
		}
		h.checkEnded(job)
		if job.Status == schedule.Skipped {
			skipped++
		}
	}
	for _, job := range slices.Concat(active, ended) {
		if job.Schedule != "" && !h.book.has(job.ID, markNow) {
			occurrences = append(occurrences, job)
		}
	}
	slices.SortFunc(occurrences, func(a, b schedule.Job) int { return a.Due.Compare(b.Due) })
	h.checkOrder(occurrences)
	plan, known := h.plan()
	if !known {
		h.Fatal("there is no plan")
	}
	if plan.Skipped != skipped {
		h.Errorf("%d occurrences are counted as skipped, and %d jobs are Skipped", plan.Skipped, skipped)
	}
	h.checkSum(plan, len(occurrences))
}

// isSearched reports whether a schedule searches for a job whose message is lost. It may search for
// a run that Inspector.Run began.
func (h ending) isSearched(job *schedule.Job) bool {
	if job.Schedule == "" || h.book.has(job.ID, markNow) {
		return false
	}
	for _, v := range h.versions {
		if v.After == 0 && v.Overlap == schedule.AllowOverlap {
			return false
		}
	}
	return true
}

// checkActive checks a job that has not ended. Only a lost message is a reason.
func (h ending) checkActive(job *schedule.Job) {
	if !h.book.has(job.ID, markLost) || h.isSearched(job) {
		h.Errorf("a job has not ended: %+v", job)
	}
}

func (h ending) checkEnded(job *schedule.Job) {
	begun, commits := h.book.attempts(job.ID)
	want := 0
	if job.Status == schedule.Succeeded {
		want = 1
	}
	if commits != want {
		h.Errorf("%d commits: %+v", commits, job)
	}
	if job.Status == schedule.Lost && (h.db != h.broker || !h.book.has(job.ID, markLost)) {
		h.Errorf("a job is given up: %+v", job)
	}
	interrupted := 0
	for i, attempt := range job.History {
		if attempt.Outcome == schedule.AttemptInterrupted {
			interrupted++
		}
		hasReturned := attempt.Outcome == schedule.AttemptSucceeded || attempt.Outcome == schedule.AttemptFailed
		if attempt.Outcome == "" || hasReturned && !slices.Contains(begun, attempt.RunID) {
			h.Errorf("attempt %d has no end, or no begin in %v: %+v", i+1, begun, job)
		}
	}
	isWhole := len(job.History) == job.Attempt && job.Status != schedule.Lost && job.Status != schedule.Cancelled
	if isWhole && interrupted != job.Interrupted {
		h.Errorf("%d attempts were interrupted: %+v", interrupted, job)
	}
	if len(job.History) != min(job.Attempt, 10) {
		h.Errorf("%d attempts in the history: %+v", len(job.History), job)
	}
}

// checkOrder checks the jobs of the occurrences, in the order of their times.
func (h ending) checkOrder(jobs []schedule.Job) {
	of := h.versions[0]
	for i := range jobs {
		job := &jobs[i]
		if i > 0 && job.Due.Equal(jobs[i-1].Due) {
			h.Errorf("two jobs for one occurrence: %+v and %+v", jobs[i-1], job)
		}
	}
	if h.isDeployed || h.hasSteps || of.After == 0 && of.Overlap == schedule.AllowOverlap {
		return
	}
	var free time.Time // when the last one had ended
	for i := range jobs {
		job := &jobs[i]
		if job.Status == schedule.Skipped {
			continue
		}
		if job.Created.Before(free) || of.After > 0 && !free.IsZero() && job.Due.Before(free.Add(of.After)) {
			h.Errorf("an occurrence begins before the end of the last one at %v: %+v", free, job)
		}
		if free = job.Ended; job.Ended.IsZero() {
			return
		}
	}
}

// checkSum checks that each occurrence has a job or is counted.
func (h ending) checkSum(p planState, jobs int) {
	of := h.versions[0]
	if h.isDeployed || of.After > 0 {
		return
	}
	if of.Missed == schedule.CatchUp && p.Missed != 0 {
		h.Errorf("occurrences were missed: %+v", p)
	}
	if of.Missed == schedule.CatchUp && of.Overlap == schedule.SkipOverlap && p.Skipped != 0 {
		h.Errorf("occurrences were skipped: %+v", p)
	}
	due := 0
	switch {
	case p.Due.Before(p.First):
	case of.Every > 0:
		due = int(p.Due.Sub(p.First)/of.Every) + 1
	default:
		step := 10 * time.Second
		if h.unit >= time.Minute {
			step = 5 * time.Minute
		}
		due = int(p.Due.UnixNano()/int64(step) - p.First.UnixNano()/int64(step))
	}
	counted := jobs + p.Missed + p.Paused // a skipped occurrence has a job
	if counted != due {
		h.Errorf("%d occurrences were due, %d have jobs, and with those that are counted there are %d: %+v", due, jobs, counted, p)
	}
}

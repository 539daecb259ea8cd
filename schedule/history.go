package schedule

import (
	"slices"
	"time"
)

// Attempt is an attempt at a job.
type Attempt struct {
	// RunID is the id of the attempt: see [Run].
	RunID string `json:"run"`
	// Started and Ended are the times of the attempt. Ended is zero while the attempt runs, and if
	// it was interrupted.
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended,omitzero"`
	// Outcome is empty while the attempt runs.
	Outcome AttemptOutcome `json:"outcome,omitempty"`
	// Error is the beginning of the text of the error.
	Error string `json:"error,omitempty"`
}

// AttemptOutcome is the outcome of an attempt.
type AttemptOutcome string

// The outcomes of attempts.
const (
	AttemptSucceeded   AttemptOutcome = "Succeeded"
	AttemptFailed      AttemptOutcome = "Failed"      // also if the job is attempted again
	AttemptCancelled   AttemptOutcome = "Cancelled"   // the attempt failed after Inspector.Cancel
	AttemptInterrupted AttemptOutcome = "Interrupted" // the attempt ended with its process
)

const (
	maxHistory      = 10
	maxAttemptError = 300 // bytes
)

// startAttempt adds an attempt to the history. The attempt before it has ended, or was interrupted.
func (j *Job) startAttempt(runID string, now time.Time) {
	j.endAttempt(AttemptInterrupted, "", time.Time{})
	j.History = append(j.History[max(0, len(j.History)-maxHistory+1):], Attempt{RunID: runID, Started: now})
}

// repeatAttempt removes an attempt whose transaction has lost a conflict. The same attempt starts
// again.
func (j *Job) repeatAttempt() {
	j.Attempt--
	j.History = j.History[:max(0, len(j.History)-1)]
}

// endAttempt stores the outcome of the attempt that runs.
func (j *Job) endAttempt(outcome AttemptOutcome, err string, now time.Time) {
	n := len(j.History)
	if n == 0 || j.History[n-1].Outcome != "" {
		return
	}
	j.History = slices.Clone(j.History) // a copy of the job may share the attempts
	last := &j.History[n-1]
	last.Outcome, last.Error, last.Ended = outcome, cut(err, maxAttemptError), now
}

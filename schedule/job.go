package schedule

import (
	"time"
)

// Status is the status of a job.
type Status string

// The statuses. The last five are final, unless the job failed and returns from the error queue.
const (
	Queued       Status = "Queued"       // it was sent
	Running      Status = "Running"      // its handlers run
	WaitingRetry Status = "WaitingRetry" // it failed, and is attempted again at Job.NextAttempt
	Succeeded    Status = "Succeeded"    // its handlers have returned nil, and their effects are committed
	Failed       Status = "Failed"       // it was moved to the error queue
	Cancelled    Status = "Cancelled"    // by Inspector.Cancel
	Skipped      Status = "Skipped"      // an occurrence was due while an earlier one had not ended
	Lost         Status = "Lost"         // its message is lost, and the endpoint has no inbox; if the message is found, the job does not run
)

// Ended reports whether the status is final.
func (s Status) Ended() bool {
	switch s {
	case Succeeded, Failed, Cancelled, Skipped, Lost:
		return true
	case Queued, Running, WaitingRetry:
	}
	return false
}

// Job is the state of a job.
type Job struct {
	// ID is the id of the job and of its message. RunID is the id of the last attempt, "" before
	// the first.
	ID    string `json:"id"`
	RunID string `json:"run,omitempty"`
	// Type is the Go type of the message, or its wire name after the first attempt.
	Type string `json:"type,omitempty"`
	// Schedule is the schedule whose occurrence the job is, and Due its time; zero values for other
	// jobs.
	Schedule string    `json:"schedule,omitempty"`
	Due      time.Time `json:"due,omitzero"`
	// Correlation is the text of the option [Correlation].
	Correlation string `json:"correlation,omitempty"`
	Status      Status `json:"status"`
	// Attempt is the number of the last attempt, from 1. MaxAttempts is the number that the policy
	// of the job allows, or the endpoint's own retries: these are known after the first failure,
	// and 0 before.
	Attempt     int `json:"attempt,omitempty"`
	MaxAttempts int `json:"max_attempts,omitempty"`
	// Interrupted is the number of attempts that ended with their process.
	Interrupted int `json:"interrupted,omitempty"`
	// NextAttempt is the time of the next attempt of a job that waits for one, and the time of a
	// job for later.
	NextAttempt time.Time `json:"next_attempt,omitzero"`
	// LastError is the beginning of the text of the last error.
	LastError string `json:"last_error,omitempty"`
	// Created, Started and Ended are the times at which the job was sent, at which its last attempt
	// began, and at which it ended.
	Created time.Time `json:"created,omitzero"`
	Started time.Time `json:"started,omitzero"`
	Ended   time.Time `json:"ended,omitzero"`
	// Renewed is the time of the last sign of the attempt that runs. The process of the attempt
	// gives a sign each minute; zero for an attempt of an older version, which gives none.
	Renewed time.Time `json:"renewed,omitzero"`
	// CancelRequested is the time of a [Inspector.Cancel] while the job ran; zero if there was
	// none.
	CancelRequested time.Time `json:"cancel_requested,omitzero"`
	// History has the last ten attempts, in their order. Attempts that a process of an older
	// version has stored are missing.
	History []Attempt `json:"history,omitempty"`
}

// maxError is the longest LastError in bytes.
const maxError = 1000

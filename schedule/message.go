package schedule

import (
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
)

// The messages of a schedule to itself. Their names and fields are stored in databases and queues:
// they only grow.

// ensureSchedule begins the plan of a schedule, changes it, or sets its next time again.
type ensureSchedule struct {
	Schedule string
	Spec     string
	Since    time.Time // when the process with that spec began, by the clock of the database
	Process  string    // the id of that process; "" from a process of an older version, whose Since is by its own clock
	// Job makes the message a probe for a job, and Sent is the time at which the probe was sent, by
	// the clock of the database: see step.search. An older version ignores both.
	Job  string    `json:",omitempty"`
	Sent time.Time `json:",omitzero"`
}

// scheduleDue is the time-out of a schedule: its next occurrence is due.
type scheduleDue struct{ Schedule string }

// occurrenceEnded ends an occurrence.
type occurrenceEnded struct {
	Schedule, Job string
	Due           time.Time
	Status        string
}

// runSchedule starts an occurrence now.
type runSchedule struct{ Schedule string }

const runScheduleType = "Holdfast.Schedule.Run"

func messages() []endpoint.Message {
	return []endpoint.Message{
		endpoint.Command[ensureSchedule]("Holdfast.Schedule.Ensure"),
		endpoint.Command[scheduleDue]("Holdfast.Schedule.Due"),
		endpoint.Command[occurrenceEnded]("Holdfast.Schedule.Ended"),
		endpoint.Command[runSchedule](runScheduleType),
	}
}

// Package schedule runs messages at times, and keeps the state of jobs.
//
// A [Schedule] sends a message to the endpoint's own queue at each of its times: by a cron text, at
// an interval, or a while after the last run has ended. The plan is in the database of the
// endpoint, and there is no leader: any number of instances may run and end. Each occurrence is one
// message, whose effects are committed once.
//
// A job is a message with a state that can be looked at and cancelled. [Enqueue] sends one with the
// other messages of a handler. Occurrences of schedules are jobs too.
//
// Schedules and jobs need an endpoint with an outbox, or with the transaction mode
// SendsAtomicWithReceive.
package schedule

package endpoint

import (
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/destination"
	"github.com/holdfast-go/holdfast/endpoint/internal/held"
	"github.com/holdfast-go/holdfast/internal/pump"
)

// Health is the state of an endpoint. Package endpoint/health serves it over HTTP.
type Health struct {
	Endpoint string `json:"endpoint"`
	// Live is false when Run has returned: then the process must be restarted. It stays true while
	// the broker is not reachable, because the endpoint waits for it.
	Live bool `json:"live"`
	// Ready is true while the endpoint receives and processes messages. It is false before Run is
	// ready and after its context has ended, while receiving fails or is paused, while the driver's
	// own queues are not known, while attempts are limited after failures in a row, while a failed
	// message cannot be settled or waits for its error queue, and while handlers beyond their time
	// limit, or functions that have not returned within 10 s, take all slots of a queue.
	Ready bool `json:"ready"`
	// Reasons are the reasons why the endpoint is not live or not ready.
	Reasons []string `json:"reasons,omitempty"`
	// Warnings are missing parts of an endpoint that is ready nevertheless, functions of the
	// program that have not returned within 10 s, failures that the transport foresees, and
	// schedules that skip their occurrences.
	Warnings []string `json:"warnings,omitempty"`
	// Quarantined is the number of messages in quarantine, of all instances; -1 if the transport
	// does not count them. It is inspected every 5 s while there are some, every Quarantine.Idle (a
	// minute) while there are none, and when this instance moves one there.
	Quarantined int64 `json:"quarantined,omitempty"`
	// Outbox is the state of the outbox; nil without one.
	Outbox *OutboxHealth `json:"outbox,omitempty"`
	// RateLimits are the limits in force: see [recoverability.RateLimit].
	RateLimits []RateLimitHealth `json:"rate_limits,omitempty"`
	// Queues are the queues that the running endpoint receives from, with the quarantine queue
	// while it is processed.
	Queues []QueueHealth `json:"queues,omitempty"`
}

// QueueHealth counts the messages of a queue that an endpoint holds.
type QueueHealth struct {
	Queue    string `json:"queue"`
	Buffered int    `json:"buffered"` // received, not handled yet
	Handling int    `json:"handling"` // in handlers
	Settling int    `json:"settling"` // handled, not settled yet; or waiting because of [Message.AtMost] or for a key
	// Held is the number of failed messages that wait because their error queue accepts no
	// messages. They take no slots.
	Held int `json:"held,omitempty"`
	// Bytes is the size of the headers and bodies of all except the held ones: see
	// [Config.MaxBufferedBytes].
	Bytes int64 `json:"bytes"`
}

// OutboxHealth is the state of an endpoint's outbox.
type OutboxHealth struct {
	// Ready messages wait to be sent, and Unsettled ones are being sent, in all instances, as
	// inspected every 5 s. A stored message contains all that one handler sent. -1 before the first
	// inspection.
	Ready     int64 `json:"ready"`
	Unsettled int64 `json:"unsettled"`
	// Oldest is how long the first ready message has waited.
	Oldest time.Duration `json:"oldest_ns"`
	// Sent counts the messages that this instance has sent from the outbox. Refused counts the sent
	// messages that moved to the error queue because the broker refused the message. Duplicates
	// counts the received messages that were handled before.
	Sent       int64 `json:"sent"`
	Refused    int64 `json:"refused"`
	Duplicates int64 `json:"duplicates"`
	// Waiting has, by name, each destination that accepts no messages at the moment and each
	// destination with waiting stored messages, as this instance knows the destinations. The stored
	// messages are not part of Ready.
	Waiting []DestinationHealth `json:"waiting,omitempty"`
}

// DestinationHealth is the state of a destination for which stored messages wait.
type DestinationHealth struct {
	// Destination is the name of a queue, or that of the type of published events.
	Destination string `json:"destination"`
	// Problem says what the destination does, such as "does not answer", and Err is the last error.
	// Both are empty when the destination has answered again.
	Problem string `json:"problem,omitempty"`
	Err     string `json:"error,omitempty"`
	// Since is the begin of the problem.
	Since time.Time `json:"since"`
	// Rows stored messages of this instance wait, and Audit of them have audit copies alone. Oldest
	// is the age of the first.
	Rows   int64         `json:"rows"`
	Audit  int64         `json:"audit,omitempty"`
	Oldest time.Duration `json:"oldest_ns,omitempty"`
}

// RateLimitHealth is a rate limit that is in force.
type RateLimitHealth struct {
	Type     string    `json:"type,omitempty"` // of messages; empty is all of them
	Since    time.Time `json:"since"`
	Failures int       `json:"failures"` // in a row
}

func (h *Health) bad(format string, args ...any) {
	h.Reasons = append(h.Reasons, fmt.Sprintf(format, args...))
}

// addHeld adds the error queues for which messages wait in the room.
func (h *Health) addHeld(room *held.Room) {
	all, full := room.States()
	for _, s := range all {
		h.bad("error queue %q accepts no messages since %s, and failed messages wait for it: %d: %v",
			s.Queue, s.Since.UTC().Format(time.RFC3339), s.Messages, s.Err)
	}
	if full {
		h.bad("failed messages take the places of others: no more than %d of them, of %d MiB in total, are held", held.MaxMessages, held.MaxBytes>>20)
	}
}

func queueHealth(queue string, s pump.Stats) QueueHealth {
	return QueueHealth{queue, s.Buffered, s.Handling, s.Settling, s.Held, s.Bytes}
}

// destinationHealth returns the states of destinations by the clock of an outbox.
func destinationHealth(states []destination.State, now time.Time) (all []DestinationHealth) {
	for _, s := range states {
		h := DestinationHealth{Destination: s.Destination, Since: s.Since, Rows: s.Rows, Audit: s.Audit}
		if s.Kind != destination.Well {
			h.Problem = s.Kind.String()
		}
		if s.Err != nil {
			h.Err = s.Err.Error()
		}
		if s.Rows > 0 {
			h.Oldest = max(0, now.Sub(s.Oldest))
		}
		all = append(all, h)
	}
	return all
}

package endpoint

import (
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/held"
	"github.com/holdfast-go/holdfast/endpoint/internal/quarantine"
	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/internal/safelog"
	"github.com/holdfast-go/holdfast/transport"
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

// Health returns the state of the endpoint.
func (e *Endpoint) Health() Health {
	h := Health{Endpoint: e.cfg.Name, Live: !e.over()}
	live := e.live.Load()
	switch {
	case !h.Live:
		h.bad("Run has returned")
	case !e.started.Load():
		h.bad("Run has not been called")
	case live == nil:
		h.bad("Run is starting")
	default:
		live.addTo(&h)
	}
	if since, lost, stalled := safelog.Stalled(e.cfg.Logger); stalled {
		h.Warnings = append(h.Warnings, fmt.Sprintf("the log takes no lines since %s, and %d are lost: what reads it has stopped",
			since.UTC().Format(time.RFC3339), lost))
	}
	h.Ready = len(h.Reasons) == 0
	return h
}

func (h *Health) bad(format string, args ...any) {
	h.Reasons = append(h.Reasons, fmt.Sprintf(format, args...))
}

// addTo adds the state of a running endpoint to h.
func (l *live) addTo(h *Health) {
	select {
	case <-l.stopping:
		h.bad("the endpoint is stopping")
	default:
	}
	for _, s := range l.sources {
		s.addTo(h)
		l.addStuck(h, s.Queue(), s.Slots())
	}
	l.satellites.addTo(h)
	l.addOutbox(h)
	l.addFunctions(h)
	h.Warnings = append(h.Warnings, l.e.warnings.All()...)
	if w, ok := l.conn.(transport.Warner); ok {
		h.Warnings = append(h.Warnings, w.Warnings()...)
	}
	if l.Quarantine != nil {
		s := l.Quarantine.Status()
		if h.addQuarantine(l.Quarantine.Queue, s); s.Visit != nil && !s.Missing {
			l.addStuck(h, l.names.Of(l.e.cfg.Name), 1)
		}
	}
	if n := l.Recovery.Stuck(); n > 0 {
		h.bad("failed messages that cannot be settled: %d", n)
	}
	h.addHeld(&l.Recovery.Room)
	for _, limit := range l.Throttle.States() {
		h.RateLimits = append(h.RateLimits, RateLimitHealth(limit))
		limited := "messages"
		if limit.Type != "" {
			limited = fmt.Sprintf("messages of type %q", limit.Type)
		}
		h.bad("%s are attempted one at a time since %s, after failures in a row", limited, limit.Since.UTC().Format(time.RFC3339))
	}
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

// addQuarantine adds the state of the quarantine with a queue to h.
func (h *Health) addQuarantine(queue string, s quarantine.Status) {
	if s.Missing {
		h.Warnings = append(h.Warnings,
			fmt.Sprintf("there is no queue %q: a poison message is redelivered without a limit", queue))
		return
	}
	h.Quarantined = s.Waiting
	if s.Visit != nil {
		h.Queues = append(h.Queues, queueHealth(queue, *s.Visit))
	}
}

func queueHealth(queue string, s pump.Stats) QueueHealth {
	return QueueHealth{queue, s.Buffered, s.Handling, s.Settling, s.Held, s.Bytes}
}

// RateLimitHealth is a rate limit that is in force.
type RateLimitHealth struct {
	Type     string    `json:"type,omitempty"` // of messages; empty is all of them
	Since    time.Time `json:"since"`
	Failures int       `json:"failures"` // in a row
}

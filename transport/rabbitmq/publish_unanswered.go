package rabbitmq

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

const (
	// slowAnswer is how long an answer takes before the driver says so.
	slowAnswer = 5 * time.Second
	// maxAnswer is how long a caller waits for an answer while the broker reads from the connection.
	maxAnswer = 30 * time.Second
	// maxUnanswered is the number of abandoned publishes without an answer from which on a destination is silent.
	maxUnanswered = 100
	// maxAbandoned is how many abandoned publishes of all destinations have no place in the window.
	maxAbandoned = 10_000
	// minTrial and maxTrial bound the time between two publishes to a silent destination. It doubles. An answer may have been
	// lost with a replica of a queue.
	minTrial, maxTrial = 5 * time.Second, 5 * time.Minute
)

// unanswered has the destinations of a connection that do not answer: callers wait for slowAnswer, or have abandoned a
// publish. The zero value has none, and needs a log. It is safe for concurrent use.
//
// The window has the publishes that callers wait for, hence a destination that does not answer fills it for no longer
// than its callers wait. An abandoned publish gives its place back. A destination is silent from the abandoned publish on
// that makes maxUnanswered, or that a caller has waited maxAnswer for, until the broker answers any publish to it; nothing
// but a trial is sent there meanwhile. A destination has fewer abandoned publishes than maxUnanswered and the window
// together, and one for each trial.
type unanswered struct {
	log  *slog.Logger
	some atomic.Bool // whether there is any; false costs a publish no lock

	mu           sync.Mutex // guards the rest
	total        int        // abandoned publishes
	destinations map[route]*silence
}

// silence is what is known of a destination that does not answer.
type silence struct {
	abandoned, waiting int       // publishes without an answer
	since              time.Time // of the last answer, or of the first publish without an answer
	told               bool      // the log has a line

	trial time.Time // when the next publish is let through; zero while the destination is not silent
	pause time.Duration
}

// destination returns the part of a route for which answers come: a queue, or an exchange with the key of a publish. A
// delayed message waits in the queue of its level, and the rest of its key is no destination.
func (r route) destination() route {
	if r.exchange == "" {
		return r
	}
	return r.place()
}

// refuse returns a [transport.BusyError] if the destination of a route is silent.
func (u *unanswered) refuse(to route) error {
	if !u.some.Load() {
		return nil
	}
	to = to.destination()
	u.mu.Lock()
	defer u.mu.Unlock()
	s := u.destinations[to]
	if s == nil || s.trial.IsZero() {
		return nil
	}
	now := time.Now()
	if !now.Before(s.trial) {
		s.pause = min(2*s.pause, maxTrial)
		s.trial = now.Add(s.pause)
		return nil
	}
	return &transport.BusyError{Queue: to.name(), Reason: fmt.Sprintf("the broker has not confirmed %d messages for it, and no other in %v",
		s.abandoned, now.Sub(s.since).Round(time.Second))}
}

// name is what logs and errors call a destination.
func (r route) name() string {
	if r.exchange != "" {
		return r.exchange
	}
	return r.key
}

// of returns what is known of a destination. The caller has locked mu.
func (u *unanswered) of(to route, since time.Time) *silence {
	s := u.destinations[to]
	if s == nil {
		s = &silence{since: since}
		if u.destinations == nil {
			u.destinations = make(map[route]*silence)
		}
		u.destinations[to] = s
		u.some.Store(true)
	}
	return s
}

// wait counts a publish that a caller has waited slowAnswer for.
func (u *unanswered) wait(to route) {
	to = to.destination()
	u.mu.Lock()
	s := u.of(to, time.Now().Add(-slowAnswer))
	s.waiting++
	first := !s.told
	s.told = true
	u.mu.Unlock() // the log may be slow, and each publish needs mu
	if first {
		u.log.Warn("the broker does not confirm messages for a queue: the queue may have lost its majority", "queue", to.name())
	}
}

// waited ends wait.
func (u *unanswered) waited(to route) {
	to = to.destination()
	u.mu.Lock()
	defer u.mu.Unlock()
	u.destinations[to].waiting--
	u.drop(to)
}

// add counts a publish that its caller has abandoned. It reports whether the publish gives its place in the window back.
func (u *unanswered) add(to route) bool {
	to = to.destination()
	u.mu.Lock()
	defer u.mu.Unlock()
	s := u.of(to, time.Now())
	s.abandoned++
	u.total++
	if s.abandoned >= maxUnanswered {
		s.silent()
	}
	return u.total <= maxAbandoned
}

// silent begins the silence of a destination, after a caller has waited maxAnswer.
func (u *unanswered) silent(to route) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if s := u.destinations[to.destination()]; s != nil {
		s.silent()
	}
}

func (s *silence) silent() {
	if s.trial.IsZero() {
		s.pause = minTrial
		s.trial = time.Now().Add(s.pause)
	}
}

// remove forgets an abandoned publish.
func (u *unanswered) remove(to route) {
	to = to.destination()
	u.mu.Lock()
	defer u.mu.Unlock()
	u.total--
	u.destinations[to].abandoned--
	u.drop(to)
}

// drop forgets a destination without publishes that wait for an answer. The caller has locked mu.
func (u *unanswered) drop(to route) {
	if s := u.destinations[to]; s.abandoned+s.waiting > 0 {
		return
	}
	if delete(u.destinations, to); len(u.destinations) == 0 {
		u.destinations = nil // a map does not shrink
		u.some.Store(false)
	}
}

// answered notes that the broker has answered a publish.
func (u *unanswered) answered(to route) {
	if !u.some.Load() {
		return
	}
	to = to.destination()
	u.mu.Lock()
	s := u.destinations[to]
	if s == nil {
		u.mu.Unlock()
		return
	}
	told, silent := s.told, time.Since(s.since)
	s.since, s.told, s.trial = time.Now(), false, time.Time{}
	u.mu.Unlock()
	if told {
		u.log.Info("the broker confirms messages for a queue again", "queue", to.name(), "after", silent.Round(time.Second))
	}
}

// warnings names the destinations that do not answer.
func (u *unanswered) warnings() (texts []string) {
	if !u.some.Load() {
		return nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for to, s := range u.destinations {
		if time.Since(s.since) >= slowAnswer {
			texts = append(texts, fmt.Sprintf("RabbitMQ has not confirmed %d messages for %q since %s: the queue may have lost its majority",
				s.abandoned+s.waiting, to.name(), s.since.UTC().Format(time.RFC3339)))
		}
	}
	slices.Sort(texts)
	return texts
}

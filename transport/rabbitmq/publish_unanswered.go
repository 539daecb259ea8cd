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
	// lateAnswer is how long an answer takes before further publishes to its destination may wait.
	lateAnswer = 500 * time.Millisecond
	// maxLate is the number of publishes without an answer from which on further ones wait.
	//
	// A channel of the broker has no more than 32 messages for a quorum queue that the queue has
	// not taken (quorum_commands_soft_limit, RabbitMQ 3.8 to 4.1). With more the channel accepts
	// 400 further messages for whatever queue, and then the broker stops to read from the
	// connection.
	maxLate = 8
	// replaceEvery is the shortest time between two channels that are opened for late answers. It
	// is shorter than the time between lateAnswer and slowAnswer: a caller asks for another channel
	// at both.
	replaceEvery = 4 * time.Second
	// slowAnswer is how long an answer takes before the driver says so.
	slowAnswer = 5 * time.Second
	// maxAnswer is how long a caller waits for an answer while the broker reads from the
	// connection.
	maxAnswer = 30 * time.Second
	// maxUnanswered is the number of abandoned publishes without an answer from which on a
	// destination is silent.
	maxUnanswered = 100
	// maxAbandoned is how many abandoned publishes of all destinations have no place in the window.
	maxAbandoned = 10_000
	// minTrial and maxTrial bound the time between two publishes to a silent destination. It
	// doubles. An answer may have been lost with a replica of a queue.
	minTrial, maxTrial = 5 * time.Second, 5 * time.Minute
)

// unanswered has the destinations of a connection that do not answer: callers wait for lateAnswer,
// or have abandoned a publish. The zero value has none, and needs a log. It is safe for concurrent
// use.
//
// Further publishes to a destination wait while maxLate publishes have late answers and no answer
// has come since, and another channel replaces the channel, because a channel with many messages
// for a quorum queue without a majority soon takes no messages for other queues. After maxAnswer
// such a destination is silent.
//
// The window has the publishes that callers wait for, hence a destination that does not answer
// fills it for no longer than its callers wait. An abandoned publish gives its place back. A
// destination is silent from the abandoned publish on that makes maxUnanswered, or that a caller
// has waited maxAnswer for, until the broker answers any publish to it; nothing but a trial is sent
// there meanwhile. A destination has fewer abandoned publishes than maxUnanswered and the window
// together, and one for each trial.
type unanswered struct {
	log  *slog.Logger
	some atomic.Bool // whether there is any; false costs a publish no lock

	mu           sync.Mutex // guards the rest
	total        int        // abandoned publishes
	destinations map[route]*silence
	replaced     time.Time // when a channel was replaced
}

// silence is what is known of a destination that does not answer.
type silence struct {
	abandoned, waiting int           // publishes without an answer
	excused            int           // of them, when another one was answered: their answers may be lost
	since              time.Time     // of the last answer, or of the first publish behind it without an answer
	told               bool          // the log has a line
	again              chan struct{} // closed when publishes need not wait any more; nil while none waits
	held               time.Time     // when the first of these publishes began to wait

	via   *sender   // the channel of the publishes without an answer, for trials; nil if it is not known
	trial time.Time // when the next publish is let through; zero while the destination is not silent
	pause time.Duration
}

// destination returns the part of a route for which answers come: a queue, or an exchange with the
// key of a publish. A delayed message waits in the queue of its level, and the rest of its key is
// no destination.
func (r route) destination() route {
	if r.exchange == "" {
		return r
	}
	return r.place()
}

// refuse returns a [transport.BusyError] if the destination of a route is silent. A trial is
// published on the channel that has the other publishes without an answer, if via is not nil: a
// channel that has never published to a quorum queue waits for the queue, and takes no messages for
// others meanwhile.
func (u *unanswered) refuse(to route) (via *sender, err error) {
	if !u.some.Load() {
		return nil, nil
	}
	to = to.destination()
	u.mu.Lock()
	defer u.mu.Unlock()
	s := u.destinations[to]
	if s == nil || s.trial.IsZero() {
		return nil, nil
	}
	now := time.Now()
	if !now.Before(s.trial) {
		s.pause = min(2*s.pause, maxTrial)
		s.trial = now.Add(s.pause)
		return s.via, nil
	}
	return nil, &transport.BusyError{Queue: to.name(), Reason: fmt.Sprintf("the broker has not confirmed %d messages for it, and no other in %v",
		s.abandoned, now.Sub(s.since).Round(time.Second))}
}

// name is what logs and errors call a destination.
func (r route) name() string {
	if r.exchange != "" {
		return r.exchange
	}
	return r.key
}

// of returns what is known of a destination that has not answered a publish since then. The caller
// has locked mu.
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
	if s.late() == 0 && s.since.Before(since) {
		s.since = since
	}
	return s
}

// late returns a channel that is closed when a publish to a destination need not wait any more, or
// nil if it need not wait.
func (u *unanswered) late(to route) (again <-chan struct{}) {
	if !u.some.Load() {
		return nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	s := u.destinations[to.destination()]
	if s == nil || !s.trial.IsZero() || !s.isLate() {
		return nil
	}
	now := time.Now()
	if s.again == nil {
		s.again, s.held = make(chan struct{}), now
	}
	if now.Sub(s.held) >= maxAnswer { // and no caller has waited for an answer so long
		s.silent()
		return nil
	}
	return s.again
}

// late returns how many publishes have no answer, without those before the last answer. The caller
// has locked mu.
func (s *silence) late() int { return s.waiting + s.abandoned - s.excused }

// isLate reports whether publishes wait, because too many have no answer. The caller has locked mu.
func (s *silence) isLate() bool { return s.late() >= maxLate }

// wake ends the wait of publishes. The caller has locked mu.
func (s *silence) wake() {
	if s.again != nil {
		close(s.again)
		s.again = nil
	}
}

// blocked ends the wait of all publishes, because the broker takes no messages at all.
func (u *unanswered) blocked() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, s := range u.destinations {
		s.wake()
	}
}

// wait counts n publishes of a batch on a channel whose caller has waited lateAnswer. It reports
// whether another channel is to replace the channel.
func (u *unanswered) wait(to route, n int, on *sender) (replace bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	s := u.of(to.destination(), now.Add(-lateAnswer))
	s.waiting += n
	return u.replaces(s, on, now)
}

// replaces reports whether another channel is to replace the channel on, which has a further
// publish without an answer. The caller has locked mu.
func (u *unanswered) replaces(s *silence, on *sender, now time.Time) bool {
	if !s.isLate() {
		return false
	}
	if s.via == nil {
		s.via = on
	}
	if s.via != on || on.wear.isReplaced() || now.Sub(u.replaced) < replaceEvery {
		return false
	}
	u.replaced = now
	return true
}

// tell logs once that a destination does not answer, after a publish on a channel. It reports
// whether another channel is to replace the channel.
func (u *unanswered) tell(to route, on *sender) (replace bool) {
	to = to.destination()
	u.mu.Lock()
	s := u.destinations[to]
	first := !s.told
	s.told = true
	replace = u.replaces(s, on, time.Now())
	u.mu.Unlock() // the log may be slow, and each publish needs mu
	if first {
		u.log.Warn("the broker does not confirm messages for a queue: the queue may have lost its majority", "queue", to.name())
	}
	return replace
}

// waited ends wait.
func (u *unanswered) waited(to route, n int) {
	to = to.destination()
	u.mu.Lock()
	defer u.mu.Unlock()
	u.destinations[to].waiting -= n
	u.drop(to)
}

// add counts a publish on a channel that its caller has abandoned. It reports whether the publish
// gives its place in the window back, and whether another channel is to replace the channel.
func (u *unanswered) add(to route, on *sender) (free, replace bool) {
	to = to.destination()
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	s := u.of(to, now)
	s.abandoned++
	u.total++
	if s.abandoned >= maxUnanswered {
		s.silent()
	}
	return u.total <= maxAbandoned, u.replaces(s, on, now)
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
	s.wake()
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
	s := u.destinations[to]
	left := s.abandoned + s.waiting
	if s.excused = min(s.excused, left); !s.isLate() {
		s.wake()
	}
	if left > 0 {
		return
	}
	if delete(u.destinations, to); len(u.destinations) == 0 {
		u.destinations = nil // a map does not shrink
		u.some.Store(false)
	}
}

// answered notes that the broker has accepted or returned a publish.
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
	s.excused, s.via = s.waiting+s.abandoned, nil
	s.wake()
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
		if n := s.late(); n > 0 && time.Since(s.since) >= slowAnswer {
			texts = append(texts, fmt.Sprintf("RabbitMQ has not confirmed %d messages for %q since %s: the queue may have lost its majority",
				n, to.name(), s.since.UTC().Format(time.RFC3339)))
		}
	}
	slices.Sort(texts)
	return texts
}

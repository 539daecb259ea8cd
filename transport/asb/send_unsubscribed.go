package asb

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// An event published to a topic that never existed has no subscribers and is dropped, unless
// Transport.MissingTopic says otherwise; a topic that existed was deleted with its subscriptions,
// which is an error. The service also answers "not found" for short times, and for the $management
// of a topic alone, so a topic counts as missing only after two such answers in a row about the
// topic itself.

// unconfirmed returns the messages whose topic was not found, unless that was found out twice in a
// row lately.
func (s *sender) unconfirmed(group []*outgoing) (missing []*outgoing) {
	if time.Since(time.Unix(0, s.absent.Load())) < denialPause {
		return nil
	}
	for _, m := range group {
		if m.publish && errors.Is(m.err, transport.ErrNoQueue) {
			m.err = nil
			missing = append(missing, m)
		}
	}
	return missing
}

// result returns the error of a message after its last request: nil for an event that has no
// subscribers.
func (s *sender) result(m *outgoing) error {
	switch {
	case !m.publish || !errors.Is(m.err, transport.ErrNoQueue):
		return m.err
	case strings.Contains(strings.ToLower(m.err.Error()), "$management"):
		return s.unmanaged(m.err)
	}
	s.absent.Store(time.Now().UnixNano())
	if missing := s.conn.ns.MissingTopic; missing == FailMissingTopic || missing == "" && s.existed.Load() {
		return fmt.Errorf("%w: the topic does not exist: run the installer of an endpoint that publishes or subscribes, or set "+
			"Transport.MissingTopic to %q if the event may have no subscribers", m.err, IgnoreMissingTopic)
	}
	s.dropped.Do(func() {
		s.conn.log.Warn("events of a topic that does not exist are dropped, as there are no subscribers", "topic", s.entity, "err", m.err,
			"advice", "if these events should be received, create the topic: run the installer of an endpoint that subscribes, or holdfast endpoint subscribe")
	})
	return nil
}

// unmanaged returns the error of a request for which only the topic's $management was missing.
func (s *sender) unmanaged(err error) error {
	return fmt.Errorf("asb: publish to %q: %w: the broker does not find the $management of the topic; the topic itself may exist: %v",
		s.entity, transport.ErrUnreachable, err) //nolint:errorlint // it must not be taken for ErrNoQueue
}

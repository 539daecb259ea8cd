package asb

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// An event that is published to a topic that does not exist has no subscribers. The service also answers "not found" in passing, and
// for the $management of a topic alone, so that the answer is believed only when the topic itself is not found twice in a row.

// errManagementMissing is the answer about the $management of a topic that may exist.
var errManagementMissing = errors.New("the broker does not find the $management of the topic; the topic itself may exist")

// unconfirmed returns the messages whose topic was not found, where it has to be asked for again.
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

// result is the outcome of an outgoing's last request.
func (s *sender) result(m *outgoing) error {
	switch {
	case !m.publish || !errors.Is(m.err, transport.ErrNoQueue):
		return m.err
	case strings.Contains(strings.ToLower(m.err.Error()), "$management"):
		return s.unmanaged(m.err)
	}
	s.absent.Store(time.Now().UnixNano())
	s.conn.logUnsubscribed(s.entity, m.err)
	return nil
}

// unmanaged is the error of a request that only the $management of the topic has not been there for.
func (s *sender) unmanaged(err error) error {
	return fmt.Errorf("asb: publish to %q: %w: %w: %v", s.entity, transport.ErrUnreachable, errManagementMissing, err) //nolint:errorlint // it must not be taken for ErrNoQueue
}

// logUnsubscribed logs the first event of a topic that is dropped.
func (c *conn) logUnsubscribed(topic string, err error) {
	c.mu.Lock()
	logged := c.dropped[topic]
	c.dropped[topic] = true
	c.mu.Unlock()
	if !logged {
		c.log.Warn("events of a topic that does not exist are dropped, as there are no subscribers", "topic", topic, "err", err,
			"advice", "create the topic with Install of an endpoint that subscribes, or by the command holdfast asb, if these events should be received")
	}
}

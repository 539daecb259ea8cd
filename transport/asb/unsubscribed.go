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

// unconfirmed returns the parcels whose topic was not found, where it has to be asked for again.
func (o *outlet) unconfirmed(group []*parcel) (missing []*parcel) {
	if time.Since(time.Unix(0, o.absent.Load())) < denialPause {
		return nil
	}
	for _, p := range group {
		if p.publish && errors.Is(p.err, transport.ErrNoQueue) {
			p.err = nil
			missing = append(missing, p)
		}
	}
	return missing
}

// result is the outcome of a parcel's last request.
func (o *outlet) result(p *parcel) error {
	switch {
	case !p.publish || !errors.Is(p.err, transport.ErrNoQueue):
		return p.err
	case strings.Contains(strings.ToLower(p.err.Error()), "$management"):
		return o.unmanaged(p.err)
	}
	o.absent.Store(time.Now().UnixNano())
	o.conn.logUnsubscribed(o.entity, p.err)
	return nil
}

// unmanaged is the error of a request that only the $management of the topic has not been there for.
func (o *outlet) unmanaged(err error) error {
	return fmt.Errorf("asb: publish to %q: %w: %w: %v", o.entity, transport.ErrUnreachable, errManagementMissing, err) //nolint:errorlint // it must not be taken for ErrNoQueue
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

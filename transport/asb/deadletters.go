package asb

import (
	"context"
	"errors"
	"slices"

	"github.com/holdfast-go/holdfast/transport"
)

// expiredReason is why the service dead-letters messages whose sender gave them a time to live, in queues that are set to
// do so.
const expiredReason = "TTLExpiredException"

// quarantineSuffix is what the endpoint calls its queue of suspects by.
const quarantineSuffix = ".quarantine"

// Satellites implements [transport.Satellites]: they are the dead letters of the endpoint's queues.
func (c *conn) Satellites() []transport.Satellite {
	if c.config.KeepDeadLetters || c.endpoint == "" { // a tool's: it looks after none
		return nil
	}
	var all []transport.Satellite
	for _, queue := range c.ownQueues() {
		ctx, cancel := context.WithTimeout(c.ctx, dialTimeout)
		path, err := c.naming.entity(queue)
		if err == nil {
			err = c.exists(ctx, path)
		}
		cancel()
		switch {
		case err == nil:
			all = append(all, transport.Satellite{Queue: queue + deadLetters, Handle: deadLettered(queue)})
		case !errors.Is(plain(err), transport.ErrNoQueue):
			c.log.Warn("the dead letters of a queue cannot be looked at, and stay where they are", "queue", queue, "err", plain(err))
		}
	}
	return all
}

// ownQueues are the endpoint's, as far as they are known.
func (c *conn) ownQueues() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	queues := []string{c.endpoint, c.endpoint + quarantineSuffix}
	for _, q := range c.installed {
		if !slices.Contains(queues, q) {
			queues = append(queues, q)
		}
	}
	return queues
}

// deadLettered says why the broker has given a message up, but for one that has expired: that is what its
// sender wanted.
func deadLettered(queue string) func(context.Context, *transport.Message) ([]transport.Operation, error) {
	return func(_ context.Context, m *transport.Message) ([]transport.Operation, error) {
		reason := m.Native[PropertyDeadLetterReason]
		if reason == expiredReason {
			return nil, nil
		}
		if why := m.Native[PropertyDeadLetterDescription]; why != "" {
			reason += " (" + why + ")"
		}
		return nil, &transport.DeadLetteredError{Queue: queue, Reason: reason, Count: 1}
	}
}

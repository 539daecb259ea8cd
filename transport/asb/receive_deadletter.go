package asb

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/holdfast-go/holdfast/transport"
)

// expiredReason is the service's reason for dead-lettering expired messages, in queues that are set
// to do so.
const expiredReason = "TTLExpiredException"

// quarantineSuffix ends the name of an endpoint's quarantine queue.
const quarantineSuffix = ".quarantine"

// deadLettersAtOnce is how many dead letters are moved at once: one that the error queue refuses
// must not delay others.
const deadLettersAtOnce = 4

// Satellites implements [transport.Satellites]: one for the dead letters of each of the endpoint's
// queues.
func (c *conn) Satellites(ctx context.Context) ([]transport.Satellite, error) {
	if c.ns.KeepDeadLetters || c.endpoint == "" { // a tool's conn has none
		return nil, nil
	}
	var (
		all  []transport.Satellite
		errs []error
	)
	c.mu.Lock()
	own := slices.Clone(c.own)
	c.mu.Unlock()
	for _, queue := range own {
		within, cancel := context.WithTimeout(ctx, dialTimeout)
		path, err := c.naming.entity(queue)
		if err == nil {
			err = c.exists(within, path)
		}
		cancel()
		switch {
		case err == nil:
			all = append(all, transport.Satellite{Queue: queue + deadLetters, Concurrency: deadLettersAtOnce, Handle: deadLettered(queue)})
		case !errors.Is(plain(err), transport.ErrNoQueue):
			errs = append(errs, fmt.Errorf("asb: look for the dead letters of %q: %w", queue, plain(err)))
		}
	}
	return all, errors.Join(errs...)
}

// deadLettered fails with the broker's reason for dead-lettering a message. An expired message is
// dropped, as its sender intended.
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

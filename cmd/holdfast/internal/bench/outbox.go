package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/transport"
)

// outbox is the name of the queue of the outbox, and inbox that of the ids of handled messages.
func (b *bench) outbox() string { return b.in + ".outbox" }
func (b *bench) inbox() string  { return b.in + ".handled" }

// openOutbox connects to the database of the outbox, if there is one, and creates the outbox.
func (b *bench) openOutbox(ctx context.Context) (err error) {
	if b.Outbox == nil {
		return nil
	}
	if b.database, err = b.Outbox.Open(ctx, transport.Env{Logger: b.Log, Instance: b.prefix}); err != nil {
		return fmt.Errorf("connect to the outbox: %w", err)
	}
	installer, ok := b.database.(transport.Installer)
	if !ok {
		return errors.New("the database of the outbox cannot create queues")
	}
	plan := transport.Plan{Queues: []transport.Queue{{Name: b.outbox()}}}
	if b.Remember >= 0 {
		plan.Inboxes = []string{b.inbox()}
	}
	return installer.Install(ctx, plan)
}

// awaitRelay waits until what the handlers have stored is sent.
func (b *bench) awaitRelay(ctx context.Context, e *endpoint.Endpoint) error {
	if b.Outbox == nil || b.Work == Receive {
		return nil
	}
	const look = 2 * time.Millisecond
	tick := time.NewTicker(look)
	defer tick.Stop()
	sent, since := int64(0), time.Now()
	for {
		if h := e.Health().Outbox; h != nil {
			if h.Sent >= int64(b.Messages) {
				return nil
			}
			if h.Sent != sent {
				sent, since = h.Sent, time.Now()
			}
		}
		if time.Since(since) > stallTime {
			return fmt.Errorf("stalled: %d of %d messages were sent from the outbox, and none was for %v", sent, b.Messages, stallTime)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// emptied fails if the outbox has messages left.
func (b *bench) emptied(ctx context.Context) error {
	inspector, ok := b.database.(transport.Inspector)
	if !ok {
		return nil
	}
	stats, err := inspector.Inspect(ctx, b.outbox())
	if err != nil {
		return fmt.Errorf("inspect the outbox: %w", err)
	}
	if left := stats[0].Ready + stats[0].Unsettled; left > 0 {
		return fmt.Errorf("%d stored messages are left in the outbox", left)
	}
	return nil
}

package tablequeue

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

const (
	moveRows  = 100         // in one statement
	moveEvery = time.Second // between two looks for due rows
	lookEvery = time.Minute // between two looks for the table
)

// mover moves the delayed messages of NServiceBus that are due into a queue.
type mover struct {
	conn   *Conn
	store  DelayedTables
	queue  string
	found  bool // the table exists
	warned bool // of the current outage
	pause  backoff.Backoff
}

// moveDelayed runs a mover for queue until the Conn is closed.
func (c *Conn) moveDelayed(queue string) {
	store, ok := c.store.(DelayedTables)
	if !ok || strings.HasSuffix(queue, ForwardsSuffix) {
		return
	}
	m := &mover{conn: c, store: store, queue: queue, pause: backoff.Backoff{Min: moveEvery, Max: lookEvery}}
	c.running.Go(func() {
		for backoff.Sleep(c.life, m.step()) == nil {
		}
	})
}

// step looks for the table, or for due rows in it, and returns the time until the next step.
func (m *mover) step() time.Duration {
	ctx, cancel := context.WithTimeout(m.conn.life, maxWait)
	defer cancel()
	var wait time.Duration
	err := m.look(ctx)
	if err == nil && !m.found {
		return lookEvery
	}
	if err == nil {
		wait, err = m.move(ctx)
	}
	switch {
	case errors.Is(err, transport.ErrNoQueue):
		m.found = false
		return lookEvery
	case err != nil:
		return m.failed(err)
	}
	m.warned = false
	m.pause.Reset()
	return wait
}

func (m *mover) look(ctx context.Context) (err error) {
	if m.found {
		return nil
	}
	if m.found, err = m.store.HasDelayed(ctx, m.queue); m.found {
		m.conn.cfg.Env.Log().InfoContext(ctx, "delayed messages of NServiceBus were found: they are moved into the queue when they are due",
			slog.String("queue", m.queue), slog.String("table", m.queue+DelayedSuffix))
	}
	return err
}

func (m *mover) move(ctx context.Context) (wait time.Duration, err error) {
	moved, next, err := m.store.MoveDue(ctx, m.queue, moveRows)
	if moved > 0 {
		m.conn.wakes.announce(m.queue)
	}
	switch {
	case moved == moveRows:
		return 0, err
	case next > 0: // a little later, for clocks that are coarser than the database's
		return min(moveEvery, next+time.Millisecond), err
	}
	return moveEvery, err
}

// failed logs the first error of an outage, and returns the pause after it.
func (m *mover) failed(err error) time.Duration {
	if !m.warned && m.conn.life.Err() == nil {
		m.warned = true
		m.conn.cfg.Env.Log().WarnContext(m.conn.life, "delayed messages of NServiceBus are not moved into the queue: it is tried again",
			slog.String("queue", m.queue), slog.String("table", m.queue+DelayedSuffix), slog.Any("error", err))
	}
	return m.pause.Next()
}

package tablequeue

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

var _ transport.Clock = (*Conn)(nil)

// Timed is implemented by a [Store] whose database may run on another machine. Without it the clock
// of this process is that of the database.
type Timed interface {
	// Now returns the time of the database.
	Now(ctx context.Context) (time.Time, error)
}

// Now implements [transport.Clock]. The difference to the clock of this process is measured when
// the Conn begins to receive, and with each sweep.
func (c *Conn) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// compareClocks measures how far the database's clock is ahead of that of this process. The
// database reads its clock between the question and the answer.
func (c *Conn) compareClocks(ctx context.Context) error {
	store, ok := c.store.(Timed)
	if !ok {
		return nil
	}
	asked := time.Now()
	now, err := store.Now(ctx)
	if err == nil {
		c.ahead.Store(int64(now.Sub(asked.Add(time.Since(asked) / 2))))
	}
	return err
}

package sqlite

import (
	"context"
	"fmt"
	"time"
)

// listenEvery is how often the file is asked whether it has changed: 5 µs of work each time.
const listenEvery = 10 * time.Millisecond

// Listen implements [tablequeue.Waker]. SQLite tells a connection whether others have
// committed something, but not what: all queues that were claimed from are woken. What this
// process writes counts too, as another connection does that.
func (s *store) Listen(ctx context.Context, ready func(), wake func(queue string)) error {
	conn, err := connection(ctx, s.read)
	if err != nil {
		return fmt.Errorf("sqlite: listen: %w", explain(err))
	}
	defer conn.Close()
	bg := context.WithoutCancel(ctx)
	version, err := conn.PrepareContext(bg, "pragma data_version")
	if err != nil {
		return fmt.Errorf("sqlite: listen: %w", explain(err))
	}
	defer version.Close()
	ready()
	tick := time.NewTicker(listenEvery)
	defer tick.Stop()
	for known := int64(-1); ; {
		var now int64
		err := unlessBusy(ctx, func() error { return version.QueryRowContext(bg).Scan(&now) })
		if err != nil {
			return fmt.Errorf("sqlite: listen: %w", explain(err))
		}
		if now != known {
			known = now
			s.claimed.Range(func(queue, _ any) bool { wake(queue.(string)); return true })
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Notify implements [tablequeue.Waker]. The commit was notice enough.
func (s *store) Notify(context.Context, []string) error { return nil }

package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
)

// How often the file is asked whether it has changed: the pause doubles from the first to the second
// while it has not.
const (
	minListen = 4 * time.Millisecond
	maxListen = 32 * time.Millisecond
)

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
	pause := minListen
	for known := int64(-1); ; pause = min(2*pause, maxListen) {
		var now int64
		err := unlessBusy(ctx, func() error { return version.QueryRowContext(bg).Scan(&now) })
		if err != nil {
			return fmt.Errorf("sqlite: listen: %w", explain(err))
		}
		if now != known {
			known, pause = now, minListen
			s.claimed.Range(func(queue, _ any) bool { wake(queue.(string)); return true }) //nolint:errcheck // its keys are names
		}
		if err := backoff.Sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// Notify implements [tablequeue.Waker]. The commit was notice enough.
func (s *store) Notify(context.Context, []string) error { return nil }

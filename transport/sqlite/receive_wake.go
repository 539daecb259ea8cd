package sqlite

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
)

// The pauses between two checks of the file: they double from the first to the second while the
// file does not change.
const (
	minListen = 4 * time.Millisecond
	maxListen = 32 * time.Millisecond
)

// Listen implements [tablequeue.Waker]. SQLite reports to a connection that another one has
// committed, but not in which table: Listen wakes all queues that were claimed from. It also
// notices the commits of this process, which are those of another connection.
func (s *store) Listen(ctx context.Context, ready func(), wake func(queue string)) error {
	conn, err := connection(ctx, s.read)
	if err != nil {
		return failed(err, "listen")
	}
	defer conn.Close()
	ready()
	pause := minListen
	for known := int64(-1); ; pause = min(2*pause, maxListen) {
		var now int64
		err := unlessBusy(ctx, func() error {
			return conn.QueryRowContext(context.WithoutCancel(ctx), "pragma data_version").Scan(&now)
		})
		if err != nil {
			return failed(err, "listen")
		}
		if now != known {
			known, pause = now, minListen
			for queue := range s.clock.Queues() {
				wake(queue)
			}
		}
		if err := backoff.Sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// Notify implements [tablequeue.Waker]. It does nothing: listeners notice the commit itself.
func (s *store) Notify(context.Context, []string) error { return nil }

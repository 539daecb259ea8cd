package tablequeue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

const (
	// forgetEvery is the time between two removals of old keys from an inbox, by all processes
	// together.
	forgetEvery = time.Minute
	// forgetFirst is the time from the first use of an inbox to the first try, so that programs
	// that run for less than forgetEvery remove old keys too.
	forgetFirst = time.Second
	// forgetSome is the number of rows that one transaction removes. A pause of forgetPause times
	// the duration of such a transaction follows, so that removing takes a bounded part of the
	// database.
	forgetSome  = 5000
	forgetPause = 10

	// largeInbox is the size in bytes from which on there is a warning.
	largeInbox = 20 << 30
	// forgetLate is how much older than Env.Remember the oldest key may be without a warning.
	forgetLate = time.Hour
)

// useInbox begins to remove old keys from an inbox that is used for the first time.
func (c *Conn) useInbox(inbox string) error {
	if _, known := c.inboxes.Load(inbox); known {
		return nil
	}
	if err := c.enter(); err != nil {
		return err
	}
	defer c.calls.Done()
	if _, known := c.inboxes.LoadOrStore(inbox, nil); !known && c.cfg.Env.Remember > 0 {
		c.running.Go(func() { c.forgetOld(inbox) })
	}
	return nil
}

// forgetOld removes keys that are older than Env.Remember from an inbox until the Conn is closed.
func (c *Conn) forgetOld(inbox string) {
	f := forgetting{
		due: func(ctx context.Context, pause time.Duration) (bool, error) {
			return c.store.DueForForgetting(ctx, inbox, pause)
		},
		some: func(ctx context.Context) (int64, error) {
			return c.store.Forget(ctx, inbox, c.cfg.Env.Remember, forgetSome)
		},
	}
	for pause := forgetFirst; backoff.Sleep(c.life, pause) == nil; pause = forgetEvery {
		err := f.once(c.life)
		if err != nil && c.life.Err() == nil {
			c.cfg.Env.Log().WarnContext(c.life, "ids of handled messages that are old enough cannot be removed: it is tried again in a minute",
				slog.String("inbox", inbox), slog.Any("error", err))
		}
	}
}

// forgetting is the removal of old rows from a table.
type forgetting struct {
	due  func(ctx context.Context, pause time.Duration) (bool, error)
	some func(ctx context.Context) (n int64, err error) // removes up to forgetSome rows
}

// once removes the rows that are old enough now, if no other process has done that lately.
func (f forgetting) once(ctx context.Context) error {
	due, err := within(ctx, func(ctx context.Context) (bool, error) { return f.due(ctx, forgetEvery-time.Second) })
	if err != nil || !due {
		return err
	}
	for {
		began := time.Now()
		n, err := within(ctx, f.some)
		if err != nil || n < forgetSome {
			return err
		}
		if err := backoff.Sleep(ctx, forgetPause*time.Since(began)); err != nil {
			return err
		}
		// Others see that the table is being cleaned up.
		if _, err := within(ctx, func(ctx context.Context) (bool, error) { return f.due(ctx, 0) }); err != nil {
			return err
		}
	}
}

// within calls fn with a bounded context.
func within[T any](ctx context.Context, fn func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	return fn(ctx)
}

// inboxWarnings returns warnings about the inboxes that the Conn uses.
func (c *Conn) inboxWarnings(ctx context.Context) (warnings []string, err error) {
	var inboxes []string
	c.inboxes.Range(func(inbox, _ any) bool {
		inboxes = append(inboxes, inbox.(string)) //nolint:errcheck // its keys are names
		return true
	})
	slices.Sort(inboxes)
	var errs []error
	for _, inbox := range inboxes {
		stats, err := c.store.InspectInbox(ctx, inbox)
		errs = append(errs, err)
		warnings = append(warnings, inboxWarning(stats, c.cfg.Env.Remember)...)
	}
	return warnings, errors.Join(errs...)
}

// inboxWarning returns what is wrong with an inbox.
func inboxWarning(stats transport.InboxStats, remember time.Duration) (warnings []string) {
	if stats.Bytes >= largeInbox {
		warnings = append(warnings, fmt.Sprintf("inbox %q has %d GiB: set Config.Remember to less, or provide for its growth",
			stats.Name, stats.Bytes>>30))
	}
	if remember > 0 && stats.Oldest > remember+forgetLate {
		warnings = append(warnings, fmt.Sprintf("ids in inbox %q are %v old and are to be removed after %v: removing them falls behind, or fails",
			stats.Name, stats.Oldest.Round(time.Minute), remember))
	}
	return warnings
}

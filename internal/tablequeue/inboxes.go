package tablequeue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/batch"
	"github.com/holdfast-go/holdfast/transport"
)

// maxFound is the number of keys that one request looks for.
const maxFound = 500

// find is a look for one key, in a batch with others.
type find struct {
	inbox string
	key   transport.HandledKey
	state transport.HandledState
}

// inboxes finds, inspects and removes the keys of handled messages.
type inboxes struct {
	*core

	finds *batch.Batcher[*find]
	used  sync.Map // the names of the inboxes that were used
}

func newInboxes(c *core) *inboxes {
	in := &inboxes{core: c}
	in.finds = batch.New(batch.Config[*find]{Flush: in.findAll, Flushers: c.cfg.Flushers, MaxItems: maxFound})
	return in
}

// FindHandled implements [transport.OutboxStore]. The keys of concurrent calls share requests.
func (in *inboxes) FindHandled(
	ctx context.Context, inbox string, keys []transport.HandledKey,
) ([]transport.HandledState, error) {
	if err := in.use(inbox); err != nil {
		return nil, err
	}
	states := make([]transport.HandledState, len(keys))
	if len(keys) != 1 {
		err := in.call(ctx, []string{inbox}, func(ctx context.Context) (err error) {
			for at := 0; at < len(keys) && err == nil; at += maxFound {
				some := keys[at:min(at+maxFound, len(keys))]
				var found []transport.HandledState
				found, err = in.store.Inboxes.FindHandled(ctx, inbox, some)
				copy(states[at:], found)
			}
			return err
		})
		return states, in.notFound(err)
	}
	f := &find{inbox: inbox, key: keys[0]}
	err := in.finds.Do(ctx, f)
	switch {
	case err == nil:
		states[0] = f.state
		return states, nil
	case errors.Is(err, batch.ErrClosed):
		return nil, transport.ErrClosed
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%w: %w", transport.ErrUnreachable, context.Cause(ctx))
	}
	return nil, in.notFound(err)
}

// notFound returns the error of a look, after which nothing has changed.
func (in *inboxes) notFound(err error) error {
	switch {
	case err == nil, errors.Is(err, transport.ErrClosed), errors.Is(err, transport.ErrNoQueue):
		return err
	}
	return in.unreachable(err)
}

// findAll carries out a batch of looks, with a request for each inbox.
func (in *inboxes) findAll(finds []*find, errs []error) {
	ctx, cancel := context.WithTimeout(in.work, maxWait)
	defer cancel()
	for start := 0; start < len(finds); {
		end := start + 1
		for end < len(finds) && finds[end].inbox == finds[start].inbox {
			end++
		}
		in.findSome(ctx, finds[start:end], errs[start:end])
		start = end
	}
}

func (in *inboxes) findSome(ctx context.Context, finds []*find, errs []error) {
	keys := make([]transport.HandledKey, len(finds))
	for i, f := range finds {
		keys[i] = f.key
	}
	var states []transport.HandledState
	err := in.store.Queues.Check(finds[0].inbox)
	if err == nil {
		err = in.again(func() (err error) {
			states, err = in.store.Inboxes.FindHandled(ctx, finds[0].inbox, keys)
			return err
		})
	}
	for i, f := range finds {
		if errs[i] = err; err == nil {
			f.state = states[i]
		}
	}
}

// InspectInbox implements [transport.InboxInspector].
func (in *inboxes) InspectInbox(ctx context.Context, inbox string) (transport.InboxStats, error) {
	return ask(ctx, in.core, []string{inbox}, func(ctx context.Context) (transport.InboxStats, error) {
		return in.store.Inboxes.InspectInbox(ctx, inbox)
	})
}

// ForgetHandled implements [transport.InboxInspector].
func (in *inboxes) ForgetHandled(ctx context.Context, inbox string, keys []transport.HandledKey) (int, error) {
	n, err := ask(ctx, in.core, []string{inbox}, func(ctx context.Context) (int64, error) { return in.store.Inboxes.ForgetKeys(ctx, inbox, keys) })
	return int(n), err
}

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

// use begins to remove old keys from an inbox that is used for the first time.
func (in *inboxes) use(inbox string) error {
	if _, known := in.used.Load(inbox); known {
		return nil
	}
	if err := in.enter(); err != nil {
		return err
	}
	defer in.calls.Done()
	if _, known := in.used.LoadOrStore(inbox, nil); !known && in.cfg.Env.Remember > 0 {
		in.running.Go(func() { in.forgetOld(inbox) })
	}
	return nil
}

// forgetOld removes keys that are older than Env.Remember from an inbox until the Conn is closed.
func (in *inboxes) forgetOld(inbox string) {
	f := forgetting{
		due: func(ctx context.Context, pause time.Duration) (bool, error) {
			return in.store.Inboxes.DueForForgetting(ctx, inbox, pause)
		},
		some: func(ctx context.Context) (int64, error) {
			return in.store.Inboxes.Forget(ctx, inbox, in.cfg.Env.Remember, forgetSome)
		},
	}
	for pause := forgetFirst; backoff.Sleep(in.life, pause) == nil; pause = forgetEvery {
		err := f.once(in.life)
		if err != nil && in.life.Err() == nil {
			in.cfg.Env.Log().WarnContext(in.life, "ids of handled messages that are old enough cannot be removed: it is tried again in a minute",
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

// warnings returns warnings about the inboxes that the Conn uses.
func (in *inboxes) warnings(ctx context.Context) (warnings []string, err error) {
	var inboxes []string
	in.used.Range(func(inbox, _ any) bool {
		inboxes = append(inboxes, inbox.(string)) //nolint:errcheck // its keys are names
		return true
	})
	slices.Sort(inboxes)
	var errs []error
	for _, inbox := range inboxes {
		stats, err := in.store.Inboxes.InspectInbox(ctx, inbox)
		errs = append(errs, err)
		warnings = append(warnings, inboxWarning(stats, in.cfg.Env.Remember)...)
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

func (in *inboxes) verify(ctx context.Context, inboxes []string) (found []transport.Finding, err error) {
	for _, inbox := range inboxes {
		err := in.store.Inboxes.InboxState(ctx, inbox)
		unfit, differs := errors.AsType[*UnfitError](err)
		switch {
		case errors.Is(err, transport.ErrNoQueue):
			found = append(found, transport.Finding{Kind: "inbox", Name: inbox, State: transport.Missing})
		case differs:
			found = append(found, transport.Finding{Kind: "inbox", Name: inbox, State: transport.Differs, Detail: unfit.Reason})
		case err != nil:
			return found, err
		}
	}
	return found, nil
}

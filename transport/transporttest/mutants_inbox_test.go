package transporttest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// finding is a fault in the keys that FindHandled looks up, or in their states.
func finding(
	ask func([]transport.HandledKey) []transport.HandledKey, answer func([]transport.HandledState) []transport.HandledState,
) func(*faulty) {
	return func(f *faulty) {
		f.find = func(
			ctx context.Context, c *faultyConn, inbox string, keys []transport.HandledKey,
		) ([]transport.HandledState, error) {
			if ask != nil {
				keys = ask(slices.Clone(keys))
			}
			states, err := c.sound.FindHandled(ctx, inbox, keys)
			if answer != nil {
				states = answer(states)
			}
			return states, err
		}
	}
}

// storingWith is a fault in the entries of Store.
func storingWith(change func(e *transport.OutboxEntry)) func(*faulty) {
	return func(f *faulty) {
		f.store = func(ctx context.Context, c *faultyConn, e transport.OutboxEntry) error {
			change(&e)
			return c.sound.Store(ctx, e)
		}
	}
}

// sendsDuplicates is a Store that sends the messages of a recorded key.
func sendsDuplicates(f *faulty) {
	f.store = func(ctx context.Context, c *faultyConn, e transport.OutboxEntry) error {
		err := c.sound.Store(ctx, e)
		if errors.Is(err, transport.ErrAlreadyHandled) {
			_, sent := c.sound.Dispatch(ctx, e.Ops)
			err = errors.Join(err, sent)
		}
		return err
	}
}

var inboxMutants = []mutant{
	{"inbox-handled", "Store records no key", storingWith(func(e *transport.OutboxEntry) { e.Key = nil })},
	{"inbox-handled", "Store sends the messages of a recorded key", sendsDuplicates},
	{"inbox-handled", "a connection sees only the keys that it recorded", func(f *faulty) {
		var mu sync.Mutex
		recorded := map[*faultyConn]bool{}
		f.store = func(ctx context.Context, c *faultyConn, e transport.OutboxEntry) error {
			mu.Lock()
			defer mu.Unlock()
			recorded[c] = true
			return c.sound.Store(ctx, e)
		}
		f.find = func(
			ctx context.Context, c *faultyConn, inbox string, keys []transport.HandledKey,
		) ([]transport.HandledState, error) {
			mu.Lock()
			defer mu.Unlock()
			if !recorded[c] {
				return make([]transport.HandledState, len(keys)), nil
			}
			return c.sound.FindHandled(ctx, inbox, keys)
		}
	}},
	{"inbox-other", "the checksum is not compared", finding(nil, func(states []transport.HandledState) []transport.HandledState {
		for i := range states {
			states[i] = min(states[i], transport.Handled)
		}
		return states
	})},
	{"inbox-other", "the checksum is part of the id", func(f *faulty) {
		withSum := func(k transport.HandledKey) transport.HandledKey {
			k.ID[0] += byte(k.Sum)
			return k
		}
		finding(func(keys []transport.HandledKey) []transport.HandledKey {
			for i := range keys {
				keys[i] = withSum(keys[i])
			}
			return keys
		}, nil)(f)
		storingWith(func(e *transport.OutboxEntry) {
			k := withSum(*e.Key)
			e.Key = &k
		})(f)
	}},
	{"inbox-many", "states are in the order of the keys", finding(func(keys []transport.HandledKey) []transport.HandledKey {
		slices.SortFunc(keys, func(a, b transport.HandledKey) int { return slices.Compare(a.ID[:], b.ID[:]) })
		return keys
	}, nil)},
	{"inbox-many", "a key that is there twice has one state", finding(func(keys []transport.HandledKey) []transport.HandledKey {
		seen := map[transport.HandledKey]bool{}
		return slices.DeleteFunc(keys, func(k transport.HandledKey) bool {
			defer func() { seen[k] = true }()
			return seen[k]
		})
	}, nil)},
	{"inbox-many", "no keys are all keys", finding(func(keys []transport.HandledKey) []transport.HandledKey {
		if len(keys) == 0 {
			return make([]transport.HandledKey, 1)
		}
		return keys
	}, nil)},
	{"inbox-at-once", "the key is looked up before it is recorded", func(f *faulty) {
		f.store = func(ctx context.Context, c *faultyConn, e transport.OutboxEntry) error {
			states, err := c.sound.FindHandled(ctx, e.Inbox, []transport.HandledKey{*e.Key})
			if err != nil || states[0] != transport.NotHandled {
				return errors.Join(err, transport.ErrAlreadyHandled)
			}
			<-time.After(time.Millisecond)
			if err := c.sound.Store(ctx, e); !errors.Is(err, transport.ErrAlreadyHandled) {
				return err
			}
			_, err = c.sound.Dispatch(ctx, e.Ops)
			return err
		}
	}},
	{"inbox-at-once", "a key that others record is another error", func(f *faulty) {
		f.store = func(ctx context.Context, c *faultyConn, e transport.OutboxEntry) error {
			err := c.sound.Store(ctx, e)
			if errors.Is(err, transport.ErrAlreadyHandled) {
				err = errMutant
			}
			return err
		}
	}},
	{"inbox-reopened", "keys are gone with the connection", func(f *faulty) {
		f.close = func(c *faultyConn) error {
			_, err := c.sound.ForgetHandled(context.Background(), c.f.installed(), keys(100))
			return errors.Join(err, c.sound.Close())
		}
		f.install = installNoting
	}},
	{"inbox-reopened", "Install empties the inboxes", func(f *faulty) {
		f.install = func(ctx context.Context, c *faultyConn, plan transport.Plan) error {
			for _, inbox := range plan.Inboxes {
				_, _ = c.sound.ForgetHandled(ctx, inbox, keys(100)) // it may not be there
			}
			return c.sound.Install(ctx, plan)
		}
	}},
	{"inbox-own", "there is one inbox", func(f *faulty) {
		f.install = installNoting
		storingWith(func(e *transport.OutboxEntry) { e.Inbox = f.installed() })(f)
		f.find = func(
			ctx context.Context, c *faultyConn, _ string, keys []transport.HandledKey,
		) ([]transport.HandledState, error) {
			return c.sound.FindHandled(ctx, f.installed(), keys)
		}
	}},
	{"inbox-missing", "a missing inbox is created", func(f *faulty) {
		f.store = func(ctx context.Context, c *faultyConn, e transport.OutboxEntry) error {
			err := c.sound.Install(ctx, transport.Plan{Inboxes: []string{e.Inbox}})
			return errors.Join(err, c.sound.Store(ctx, e))
		}
	}},
	{"inbox-missing", "a missing inbox has no keys", func(f *faulty) {
		f.find = func(
			ctx context.Context, c *faultyConn, inbox string, keys []transport.HandledKey,
		) ([]transport.HandledState, error) {
			states, err := c.sound.FindHandled(ctx, inbox, keys)
			if errors.Is(err, transport.ErrNoQueue) {
				return make([]transport.HandledState, len(keys)), nil
			}
			return states, err
		}
	}},
	{"inbox-removed", "Remove leaves inboxes", func(f *faulty) {
		f.remove = func(context.Context, *faultyConn, []string) error { return nil }
	}},
	{"inbox-removed", "Remove keeps the keys for a new inbox", func(f *faulty) {
		var mu sync.Mutex
		var removed []string
		f.remove = func(_ context.Context, _ *faultyConn, queues []string) error {
			mu.Lock()
			defer mu.Unlock()
			removed = append(removed, queues...)
			return nil
		}
		f.find = func(
			ctx context.Context, c *faultyConn, inbox string, keys []transport.HandledKey,
		) ([]transport.HandledState, error) {
			mu.Lock()
			i := slices.Index(removed, inbox)
			removed = nil // as after Install
			mu.Unlock()
			if i >= 0 {
				return nil, transport.ErrNoQueue
			}
			return c.sound.FindHandled(ctx, inbox, keys)
		}
	}},
	{"inbox-removed", "Remove deletes all inboxes", func(f *faulty) {
		f.remove = func(ctx context.Context, c *faultyConn, queues []string) error {
			for _, q := range queues {
				queues = append(queues, strings.Replace(q, "handled", "kept", 1))
			}
			return c.sound.Remove(ctx, queues...)
		}
	}},
	{"inbox-verified", "Verify does not look at inboxes", func(f *faulty) {
		f.verify = func(ctx context.Context, c *faultyConn, plan transport.Plan) ([]transport.Finding, error) {
			plan.Inboxes = nil
			return c.sound.Verify(ctx, plan)
		}
	}},
	{"inbox-verified", "Verify creates inboxes", func(f *faulty) {
		f.verify = func(ctx context.Context, c *faultyConn, plan transport.Plan) ([]transport.Finding, error) {
			found, err := c.sound.Verify(ctx, plan)
			return found, errors.Join(err, c.sound.Install(ctx, plan))
		}
	}},
	{"inbox-remembered", "no key is removed", func(f *faulty) {
		f.open = func(ctx context.Context) (transport.Conn, error) {
			c, err := f.Transport.Open(ctx, transport.Env{})
			if err != nil {
				return nil, err
			}
			return &faultyConn{sound: c.(sound), f: f}, nil
		}
	}},
	{"inbox-remembered", "each key is removed with the old ones", func(f *faulty) {
		f.find = func(
			ctx context.Context, c *faultyConn, inbox string, keys []transport.HandledKey,
		) ([]transport.HandledState, error) {
			if len(keys) > 1 {
				if _, err := c.sound.ForgetHandled(ctx, inbox, keys); err != nil {
					return nil, err
				}
			}
			return c.sound.FindHandled(ctx, inbox, keys)
		}
	}},
	{"inbox-inspected", "the number of ids is not known", func(f *faulty) {
		f.inspectBox = func(stats transport.InboxStats, err error) (transport.InboxStats, error) {
			stats.Rows = -1
			return stats, err
		}
	}},
	{"inbox-inspected", "the age of the oldest id is not known", func(f *faulty) {
		f.inspectBox = func(stats transport.InboxStats, err error) (transport.InboxStats, error) {
			stats.Oldest = 0
			return stats, err
		}
	}},
	{"inbox-inspected", "a missing inbox is empty", func(f *faulty) {
		f.inspectBox = func(stats transport.InboxStats, _ error) (transport.InboxStats, error) { return stats, nil }
	}},
	{"inbox-forgotten", "ids that were not there are counted", func(f *faulty) {
		f.forget = func(ctx context.Context, c *faultyConn, inbox string, keys []transport.HandledKey) (int, error) {
			_, err := c.sound.ForgetHandled(ctx, inbox, keys)
			return len(keys), err
		}
	}},
	{"inbox-forgotten", "ids with another checksum stay", func(f *faulty) {
		f.forget = func(ctx context.Context, c *faultyConn, inbox string, keys []transport.HandledKey) (int, error) {
			states, err := c.sound.FindHandled(ctx, inbox, keys)
			if err != nil {
				return 0, err
			}
			var same []transport.HandledKey
			for i, state := range states {
				if state == transport.Handled {
					same = append(same, keys[i])
				}
			}
			return c.sound.ForgetHandled(ctx, inbox, same)
		}
	}},
}

// installNoting is a sound Install that notes the first inbox.
func installNoting(ctx context.Context, c *faultyConn, plan transport.Plan) error {
	for _, inbox := range plan.Inboxes {
		c.f.firstInbox.CompareAndSwap(nil, &inbox)
	}
	return c.sound.Install(ctx, plan)
}

// installed returns the inbox that installNoting has noted.
func (f *faulty) installed() string {
	if name := f.firstInbox.Load(); name != nil {
		return *name
	}
	return ""
}

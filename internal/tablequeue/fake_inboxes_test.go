package tablequeue

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// fakeInbox is an inbox of a fake.
type fakeInbox struct {
	keys      map[[16]byte]fakeKey
	forgotten time.Time // when it was marked last
}

type fakeKey struct {
	sum uint32
	at  time.Time
}

// inbox returns an inbox. mu is held.
func (f *fake) inbox(name string) (*fakeInbox, error) {
	in := f.inboxes[name]
	if in == nil {
		return nil, fmt.Errorf("fake: inbox %q: %w", name, transport.ErrNoQueue)
	}
	return in, nil
}

// record records the key of u, and reports whether it was new. mu is held.
func (f *fake) record(u *Unit) bool {
	keys := f.inboxes[u.Inbox].keys
	if _, known := keys[u.Key.ID]; known {
		return false
	}
	keys[u.Key.ID] = fakeKey{u.Key.Sum, time.Now()}
	return true
}

func (f *fake) FindHandled(_ context.Context, inbox string, keys []transport.HandledKey) ([]transport.HandledState, error) {
	f.mu.Lock()
	f.called("find %d", len(keys))
	f.mu.Unlock()
	if f.onFind != nil {
		if err := f.onFind(); err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	in, err := f.inbox(inbox)
	if err != nil {
		return nil, err
	}
	states := make([]transport.HandledState, len(keys))
	for i, k := range keys {
		if known, ok := in.keys[k.ID]; ok {
			states[i] = transport.HandledOther
			if known.sum == k.Sum {
				states[i] = transport.Handled
			}
		}
	}
	return states, nil
}

func (f *fake) DueForForgetting(_ context.Context, inbox string, pause time.Duration) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	in, err := f.inbox(inbox)
	if err != nil || time.Since(in.forgotten) < pause {
		return false, err
	}
	in.forgotten = time.Now()
	return true, nil
}

func (f *fake) Forget(_ context.Context, inbox string, age time.Duration, limit int) (n int64, err error) {
	if f.onForget != nil {
		if err := f.onForget(); err != nil {
			return 0, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	in, err := f.inbox(inbox)
	if err != nil {
		return 0, err
	}
	for id, k := range in.keys {
		if time.Since(k.at) > age && n < int64(limit) {
			delete(in.keys, id)
			n++
		}
	}
	f.called("forget %d", n)
	return n, nil
}

func (f *fake) ForgetKeys(_ context.Context, inbox string, keys []transport.HandledKey) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	in, err := f.inbox(inbox)
	if err != nil {
		return 0, err
	}
	before := len(in.keys)
	for _, k := range keys {
		delete(in.keys, k.ID)
	}
	return int64(before - len(in.keys)), nil
}

func (f *fake) InspectInbox(_ context.Context, inbox string) (transport.InboxStats, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	in, err := f.inbox(inbox)
	if err != nil {
		return transport.InboxStats{}, err
	}
	stats := transport.InboxStats{Name: inbox, Rows: int64(len(in.keys))}
	for _, k := range in.keys {
		stats.Oldest = max(stats.Oldest, time.Since(k.at))
	}
	return stats, nil
}

func (f *fake) InboxState(_ context.Context, inbox string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.inbox(inbox)
	return err
}

package tablequeue

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// aging is a store with an inbox that has old keys.
type aging struct {
	*fake
	Inboxes // of which no other method is called

	mu     sync.Mutex // guards the rest
	marked time.Time  // when a process last removed keys
	old    int64
}

func (a *aging) FindHandled(_ context.Context, _ string, keys []transport.HandledKey) ([]transport.HandledState, error) {
	return make([]transport.HandledState, len(keys)), nil
}

func (a *aging) DueForForgetting(_ context.Context, _ string, pause time.Duration) (bool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Since(a.marked) < pause {
		return false, nil
	}
	a.marked = time.Now()
	return true, nil
}

func (a *aging) Forget(_ context.Context, _ string, _ time.Duration, limit int) (int64, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := min(a.old, int64(limit))
	a.old -= n
	return n, nil
}

func (a *aging) left() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.old
}

// The first removal comes soon after the first use, unless another process has removed keys lately.
func TestOldKeysAreRemovedSoonAfterTheFirstUse(t *testing.T) {
	for name, test := range map[string]struct {
		marked time.Duration // before the first use
		after  time.Duration // when the keys are removed
	}{
		"due":            {time.Hour, forgetFirst},
		"removed lately": {30 * time.Second, forgetFirst + forgetEvery},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &aging{fake: newFake(), old: 3*forgetSome + 1}
				c := Open(store, Config{Env: transport.Env{Remember: 24 * time.Hour}})
				defer c.Close()
				time.Sleep(time.Hour) // the inbox is not used yet
				store.mu.Lock()
				store.marked = time.Now().Add(-test.marked)
				store.mu.Unlock()
				if _, err := c.FindHandled(t.Context(), "sales.handled", make([]transport.HandledKey, 1)); err != nil {
					t.Fatal(err)
				}
				time.Sleep(test.after - time.Millisecond)
				if n := store.left(); n != 3*forgetSome+1 {
					t.Errorf("%d keys are left before the first removal", n)
				}
				time.Sleep(time.Second)
				if n := store.left(); n != 0 {
					t.Errorf("%d keys are left after %v", n, test.after)
				}
			})
		})
	}
}

package transporttest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// faultyCursor is a cursor with a fault. What is nil it does soundly.
type faultyCursor struct {
	transport.Cursor

	next func(ctx context.Context, limit int) ([]*transport.Message, error)
	take func(ctx context.Context, m *transport.Message, ops []transport.Operation) error
}

func (cur *faultyCursor) Next(ctx context.Context, limit int) ([]*transport.Message, error) {
	if cur.next != nil {
		return cur.next(ctx, limit)
	}
	return cur.Cursor.Next(ctx, limit)
}

func (cur *faultyCursor) Take(ctx context.Context, m *transport.Message, ops []transport.Operation) error {
	if cur.take != nil {
		return cur.take(ctx, m, ops)
	}
	return cur.Cursor.Take(ctx, m, ops)
}

// browsingBadly is a driver whose cursors are changed.
func browsingBadly(change func(c *faultyConn, queue string, cur *faultyCursor)) func(*faulty) {
	return func(f *faulty) {
		f.browse = func(ctx context.Context, c *faultyConn, queue string) (transport.Cursor, error) {
			sound, err := c.sound.Browse(ctx, queue)
			if err != nil {
				return nil, err
			}
			cur := &faultyCursor{Cursor: sound}
			change(c, queue, cur)
			return cur, nil
		}
	}
}

// listsNothing is a driver whose cursors are at their end at once.
var listsNothing = browsingBadly(func(_ *faultyConn, _ string, cur *faultyCursor) {
	cur.next = func(context.Context, int) ([]*transport.Message, error) { return nil, nil }
})

var browseMutants = []mutant{
	{"browse", "nothing is listed", listsNothing},
	{"browse-end", "nothing is listed", listsNothing},
	{"browse-take", "nothing is listed", listsNothing},
	{"browse-take-refused", "nothing is listed", listsNothing},
	{"browse-taken", "nothing is listed", listsNothing},
	{"browse", "what was looked at is gone", browsingBadly(func(_ *faultyConn, _ string, cur *faultyCursor) {
		cur.next = func(ctx context.Context, limit int) ([]*transport.Message, error) {
			ms, err := cur.Cursor.Next(ctx, limit)
			for _, m := range ms {
				err = errors.Join(err, cur.Cursor.Take(ctx, m, nil))
			}
			return ms, err
		}
	})},
	{"browse", "bodies are left out", browsingBadly(func(_ *faultyConn, _ string, cur *faultyCursor) {
		cur.next = func(ctx context.Context, limit int) ([]*transport.Message, error) {
			ms, err := cur.Cursor.Next(ctx, limit)
			for i, m := range ms {
				bare := *m
				bare.Body, ms[i] = nil, &bare
			}
			return ms, err
		}
	})},
	{"browse-end", "what comes later shows", browsingBadly(func(c *faultyConn, queue string, cur *faultyCursor) {
		cur.next = func(ctx context.Context, limit int) ([]*transport.Message, error) {
			ms, err := cur.Cursor.Next(ctx, limit)
			if len(ms) > 0 || err != nil {
				return ms, err
			}
			if cur.Cursor, err = c.sound.Browse(ctx, queue); err != nil {
				return nil, err
			}
			return cur.Cursor.Next(ctx, limit)
		}
	})},
	{"browse-take", "what is to be sent is dropped", browsingBadly(func(_ *faultyConn, _ string, cur *faultyCursor) {
		cur.take = func(ctx context.Context, m *transport.Message, _ []transport.Operation) error {
			return cur.Cursor.Take(ctx, m, nil)
		}
	})},
	{"browse-take", "the message stays", browsingBadly(func(c *faultyConn, _ string, cur *faultyCursor) {
		cur.take = func(ctx context.Context, _ *transport.Message, ops []transport.Operation) error {
			_, err := c.sound.Dispatch(ctx, ops)
			return err
		}
	})},
	{"browse-take-refused", "the message is gone all the same", browsingBadly(func(_ *faultyConn, _ string, cur *faultyCursor) {
		cur.take = func(ctx context.Context, m *transport.Message, ops []transport.Operation) error {
			err := cur.Cursor.Take(ctx, m, ops)
			if err != nil {
				err = errors.Join(err, cur.Cursor.Take(ctx, m, nil))
			}
			return err
		}
	})},
	{"browse-take-refused", "what was not refused is sent", browsingBadly(func(c *faultyConn, _ string, cur *faultyCursor) {
		cur.take = func(ctx context.Context, m *transport.Message, ops []transport.Operation) error {
			if _, err := c.sound.Dispatch(ctx, ops); err != nil {
				return err
			}
			return cur.Cursor.Take(ctx, m, nil)
		}
	})},
	{"browse-taken", "what is gone is sent again", browsingBadly(func(c *faultyConn, _ string, cur *faultyCursor) {
		cur.take = func(ctx context.Context, m *transport.Message, ops []transport.Operation) error {
			err := cur.Cursor.Take(ctx, m, ops)
			if errors.Is(err, transport.ErrNotFound) {
				_, err = c.sound.Dispatch(ctx, ops)
			}
			return err
		}
	})},
	{"browse-limit", "messages that were passed over are gone", browsingBadly(func(_ *faultyConn, _ string, cur *faultyCursor) {
		var seen []*transport.Message
		cur.next = func(ctx context.Context, limit int) (_ []*transport.Message, err error) {
			seen, err = cur.Cursor.Next(ctx, limit)
			return seen, err
		}
		cur.take = func(ctx context.Context, m *transport.Message, ops []transport.Operation) error {
			return errors.Join(cur.Cursor.Take(ctx, m, ops), cur.Cursor.Take(ctx, seen[0], nil))
		}
	})},
	{"browse-limit", "a look fails with another error", browsingBadly(func(_ *faultyConn, _ string, cur *faultyCursor) {
		cur.take = func(context.Context, *transport.Message, []transport.Operation) error { return transport.ErrNotFound }
	})},
	{"browse-no-queue", "a missing queue is empty", func(f *faulty) {
		f.browse = func(ctx context.Context, c *faultyConn, queue string) (transport.Cursor, error) {
			cur, err := c.sound.Browse(ctx, queue)
			if errors.Is(err, transport.ErrNoQueue) {
				err = nil
			}
			return cur, err
		}
	}},
	{"purge", "it counts what is out too", func(f *faulty) {
		f.purge = func(ctx context.Context, c *faultyConn, queue string) (int64, error) {
			n, err := c.sound.Purge(ctx, queue)
			return n + int64(len(c.unsettled())), err
		}
	}},
	{"purge", "it counts what is delayed too", func(f *faulty) {
		f.purge = func(ctx context.Context, c *faultyConn, queue string) (int64, error) {
			stats, err := c.sound.Inspect(ctx, queue)
			if err != nil {
				return 0, err
			}
			n, err := c.sound.Purge(ctx, queue)
			return n + stats[0].Delayed, err
		}
	}},
	{"purge", "nothing is removed", func(f *faulty) {
		f.purge = func(ctx context.Context, c *faultyConn, queue string) (int64, error) {
			stats, err := c.sound.Inspect(ctx, queue)
			if err != nil {
				return 0, err
			}
			return stats[0].Ready, nil
		}
	}},
	{"purge-no-queue", "a missing queue is empty", func(f *faulty) {
		f.purge = func(ctx context.Context, c *faultyConn, queue string) (int64, error) {
			n, err := c.sound.Purge(ctx, queue)
			if errors.Is(err, transport.ErrNoQueue) {
				err = nil
			}
			return n, err
		}
	}},
}

// A machine that is busy makes Purge slow, which is no fault.
func TestAPurgeMayTakeLongerThanADelay(t *testing.T) {
	i := slices.IndexFunc(table, func(r rule) bool { return r.name == "purge" })
	slow := func(f *faulty) {
		f.purge = func(ctx context.Context, c *faultyConn, queue string) (int64, error) {
			<-time.After(1500 * time.Millisecond) // of a bubble of synctest
			return c.sound.Purge(ctx, queue)
		}
	}
	if r := tryOn(t, table[i], faultyHarness(slow)); r.Failed() {
		t.Error(r.text())
	}
}

// The standard queues of SQS promise no order.
func TestAnUnorderedListingMayHaveAnyOrder(t *testing.T) {
	i := slices.IndexFunc(table, func(r rule) bool { return r.name == "browse" })
	for _, unordered := range []bool{false, true} {
		h := faultyHarness(browsingBadly(func(_ *faultyConn, _ string, cur *faultyCursor) {
			cur.next = func(ctx context.Context, limit int) ([]*transport.Message, error) {
				ms, err := cur.Cursor.Next(ctx, limit)
				slices.Reverse(ms)
				return ms, err
			}
		}))
		h.Unordered = unordered
		if r := tryOn(t, table[i], h); r.Failed() == unordered {
			t.Errorf("Unordered %t: failed %t: %s", unordered, r.Failed(), r.text())
		}
	}
}

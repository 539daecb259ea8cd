package sqlite

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

// record records the key of u, if it has one, and reports whether the key is new.
func (w *writer) record(u *tablequeue.Unit, now int64) (fresh bool, err error) {
	if u.Key == nil {
		return true, nil
	}
	n, err := w.change(recordKey, u.Key.ID[:], now, int64(u.Key.Sum), u.Inbox)
	if err == nil && n == 0 {
		err = exists(w.statements[inboxExists].QueryRowContext(context.Background(), u.Inbox))
	}
	if err != nil {
		return false, fmt.Errorf("record in inbox %q: %w", u.Inbox, err)
	}
	return n > 0, nil
}

// unrecord undoes record of a new key.
func (w *writer) unrecord(u *tablequeue.Unit) error {
	if u.Key == nil {
		return nil
	}
	_, err := w.change(forgetKey, u.Inbox, u.Key.ID[:])
	return err
}

// exists fails with [transport.ErrNoQueue] where a query has counted nothing.
func exists(row *sql.Row) error {
	var n int
	if err := row.Scan(&n); err != nil {
		return err
	}
	if n == 0 {
		return transport.ErrNoQueue
	}
	return nil
}

// FindHandled implements [tablequeue.Inboxes]. It ignores the end of ctx, as a reader hardly ever
// waits.
func (s *store) FindHandled(
	ctx context.Context, inbox string, keys []transport.HandledKey,
) (states []transport.HandledState, err error) {
	wanted := make([]string, len(keys))
	for i := range keys {
		wanted[i] = hex.EncodeToString(keys[i].ID[:])
	}
	list, err := json.Marshal(wanted)
	if err != nil {
		return nil, err
	}
	err = unlessBusy(ctx, func() error {
		states, err = s.findKeys(ctx, inbox, keys, string(list))
		return err
	})
	return states, failed(err, "look for handled messages in inbox %q", inbox)
}

func (s *store) findKeys(
	ctx context.Context, inbox string, keys []transport.HandledKey, list string,
) ([]transport.HandledState, error) {
	rows, err := s.find.QueryContext(context.WithoutCancel(ctx), list, inbox)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	states, seen := make([]transport.HandledState, len(keys)), 0
	for ; rows.Next(); seen++ {
		var at int
		var sum sql.Null[int64]
		if err := rows.Scan(&at, &sum); err != nil {
			return nil, err
		}
		switch {
		case !sum.Valid:
		case sum.V == int64(keys[at].Sum):
			states[at] = transport.Handled
		default:
			states[at] = transport.HandledOther
		}
	}
	if err := rows.Err(); err == nil && seen < len(keys) {
		return nil, transport.ErrNoQueue
	}
	return states, rows.Err()
}

// DueForForgetting implements [tablequeue.Inboxes].
func (s *store) DueForForgetting(ctx context.Context, inbox string, pause time.Duration) (bool, error) {
	now := s.clock.wall()
	n, err := s.forget(ctx, markForgetting, micros(now), inbox, micros(now.Add(-pause)))
	return n > 0, failed(err, "look for old ids in inbox %q", inbox)
}

// Forget implements [tablequeue.Inboxes].
func (s *store) Forget(ctx context.Context, inbox string, age time.Duration, limit int) (int64, error) {
	n, err := s.forget(ctx, forgetOld, inbox, micros(s.clock.wall().Add(-age)), limit)
	return n, failed(err, "remove old ids from inbox %q", inbox)
}

// forget executes a statement of the removal of old keys. It does not wait for the disk: a key that
// comes back after a power failure is removed again.
func (s *store) forget(ctx context.Context, query string, args ...any) (n int64, err error) {
	err = s.writer.do(ctx, lease, func(*sql.Tx) (err error) {
		n, err = s.writer.change(query, args...)
		return err
	})
	return n, err
}

// ForgetKeys implements [tablequeue.Inboxes].
func (s *store) ForgetKeys(ctx context.Context, inbox string, keys []transport.HandledKey) (removed int64, err error) {
	err = s.writer.do(ctx, durable, func(*sql.Tx) error {
		removed = 0
		for i := range keys {
			n, err := s.writer.change(forgetKey, inbox, keys[i].ID[:])
			if err != nil {
				return err
			}
			removed += n
		}
		if removed > 0 {
			return nil
		}
		return exists(s.writer.statements[inboxExists].QueryRowContext(context.Background(), inbox))
	})
	return removed, failed(err, "remove ids from inbox %q", inbox)
}

// keySize is the size in bytes of a key in the file with its index, as it was measured.
const keySize = 80

// InspectInbox implements [tablequeue.Inboxes]. It reads an index of all keys, a million in about
// 70 ms.
func (s *store) InspectInbox(ctx context.Context, inbox string) (transport.InboxStats, error) {
	stats, now := transport.InboxStats{Name: inbox}, s.clock.wall()
	var oldest sql.Null[int64]
	err := unlessBusy(ctx, func() error {
		return s.read.QueryRowContext(ctx, inspectInbox, inbox, micros(now.Add(-time.Hour))).Scan(&stats.Rows, &stats.LastHour, &oldest)
	})
	if errors.Is(err, sql.ErrNoRows) {
		err = transport.ErrNoQueue
	}
	stats.Bytes = stats.Rows * keySize
	if oldest.Valid {
		stats.Oldest = time.Duration(max(0, micros(now)-oldest.V)) * time.Microsecond
	}
	return stats, failed(err, "inspect inbox %q", inbox)
}

// InboxState implements [tablequeue.Inboxes]. The table of all inboxes is of this version, as the
// file is.
func (s *store) InboxState(ctx context.Context, inbox string) error {
	err := unlessBusy(ctx, func() error { return exists(s.read.QueryRowContext(ctx, inboxExists, inbox)) })
	return failed(err, "look for inbox %q", inbox)
}

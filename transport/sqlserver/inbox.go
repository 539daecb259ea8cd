package sqlserver

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

// inbox returns the statements on an inbox.
func (s *store) inbox(name string) *inboxTable {
	if t, ok := s.inboxes.Load(name); ok {
		return t
	}
	return s.inboxes.Add(name, newInbox(s.Schema, s.place(name)))
}

// installInboxes returns the statements that create inboxes and their versions.
func (s *store) installInboxes(inboxes []string) (steps []step) {
	if len(inboxes) > 0 {
		steps = append(steps, step{"versions of inboxes", createInboxVersions(s.Schema)})
	}
	for _, name := range inboxes {
		t, of := s.inbox(name), fmt.Sprintf("inbox %q", name)
		steps = append(steps, step{of, t.create}, step{of, t.note})
	}
	return steps
}

// keyed returns a parameter with the keys, each with its number and its checksum.
func keyed(keys []transport.HandledKey) sql.NamedArg {
	rows := make([][]any, len(keys))
	for i, k := range keys {
		rows[i] = []any{i, hex.EncodeToString(k.ID[:]), int32(k.Sum)} //nolint:gosec // its bits
	}
	return list("keys", rows)
}

// FindHandled implements [tablequeue.Inboxes].
func (s *store) FindHandled(
	ctx context.Context, inbox string, keys []transport.HandledKey,
) ([]transport.HandledState, error) {
	states := make([]transport.HandledState, len(keys))
	err := each(ctx, s.db, func(rows *sql.Rows) error {
		var n int
		var sum int32
		err := rows.Scan(&n, &sum)
		if err == nil {
			states[n] = transport.HandledOther
			if uint32(sum) == keys[n].Sum { //nolint:gosec // its bits
				states[n] = transport.Handled
			}
		}
		return err
	}, s.inbox(inbox).find, keyed(keys))
	return states, failed(err, "look for handled messages in inbox %q", inbox)
}

// DueForForgetting implements [tablequeue.Inboxes].
func (s *store) DueForForgetting(ctx context.Context, inbox string, pause time.Duration) (bool, error) {
	n, err := changed(ctx, s.db, s.inbox(inbox).due, ago(pause))
	return n > 0, failed(err, "look for old ids in inbox %q", inbox)
}

// Forget implements [tablequeue.Inboxes].
func (s *store) Forget(ctx context.Context, inbox string, age time.Duration, limit int) (int64, error) {
	n, err := changed(ctx, s.db, s.inbox(inbox).forget, ago(age), sql.Named("limit", limit))
	return n, failed(err, "remove old ids from inbox %q", inbox)
}

func ago(d time.Duration) sql.NamedArg { return sql.Named("ago", -d.Microseconds()) }

// ForgetKeys implements [tablequeue.Inboxes].
func (s *store) ForgetKeys(ctx context.Context, inbox string, keys []transport.HandledKey) (int64, error) {
	n, err := changed(ctx, s.db, s.inbox(inbox).forgetKeys, keyed(keys))
	return n, failed(err, "remove ids from inbox %q", inbox)
}

// InspectInbox implements [tablequeue.Inboxes]. The number of rows in a large inbox is the server's
// estimate.
func (s *store) InspectInbox(ctx context.Context, inbox string) (transport.InboxStats, error) {
	stats := transport.InboxStats{Name: inbox}
	var oldest int64
	err := s.db.QueryRowContext(ctx, s.inbox(inbox).inspect).Scan(&stats.Rows, &stats.Bytes, &stats.LastHour, &oldest)
	stats.Oldest = time.Duration(max(0, oldest)) * time.Microsecond
	return stats, failed(err, "inspect inbox %q", inbox)
}

// InboxState implements [tablequeue.Inboxes].
func (s *store) InboxState(ctx context.Context, inbox string) error {
	t := s.inbox(inbox)
	var columns []string
	err := each(ctx, s.db, values(&columns), t.columns)
	if err == nil && len(columns) == 0 {
		err = transport.ErrNoQueue
	}
	if err == nil {
		err = noInbox(columns)
	}
	version := 0
	if err == nil {
		err = s.db.QueryRowContext(ctx, t.version).Scan(&version)
	}
	switch {
	case errors.Is(err, sql.ErrNoRows):
		err = transport.ErrNoQueue // the installer adds the version
	case version > inboxVersion:
		err = &tablequeue.UnfitError{Reason: fmt.Sprintf("it is of version %d, this program knows version %d: update this program",
			version, inboxVersion)}
	}
	return failed(err, "inbox %q in schema %q", inbox, s.Schema)
}

// noInbox returns the reason why a table with these columns is no inbox, or nil.
func noInbox(columns []string) error {
	for _, column := range []string{"key", "at", "sum"} {
		if !slices.Contains(columns, column) {
			return &tablequeue.UnfitError{Reason: fmt.Sprintf("its table has no column %q: it is no inbox", column)}
		}
	}
	return nil
}

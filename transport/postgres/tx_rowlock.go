package postgres

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

var _ tablequeue.Locker = (*handlerTx)(nil)

// rowLock locks the row of a message for its transaction. Above READ COMMITTED every change that
// others make after the first statement is a conflict, even a renewal of the lease. So a statement
// before the first locks the row, and the lease is not renewed: claims skip locked rows.
type rowLock struct {
	wanted bool // and not yet taken
	table  *table
	lease  tablequeue.Lease
	hold   func()
}

// Completes implements [tablequeue.Locker].
func (h *handlerTx) Completes(queue string, l tablequeue.Lease, hold func()) {
	h.user.lock = rowLock{wanted: h.store.snapshots, table: h.store.table(queue), lease: l, hold: hold}
}

func (l *rowLock) take(ctx context.Context, tx pgx.Tx) error {
	l.hold()
	var seq int64
	// Planned anew each time: a cached plan may be for an empty queue.
	err := tx.QueryRow(ctx, l.table.lock, pgx.QueryExecModeExec, l.lease.Seq, l.lease.ID).Scan(&seq)
	if errors.Is(err, pgx.ErrNoRows) {
		err = transport.ErrLeaseLost
	}
	if err != nil {
		return fmt.Errorf("postgres: lock message %d of queue %q: %w", l.lease.Seq, l.table.name, err)
	}
	return nil
}

var setsIsolation = regexp.MustCompile(`(?is)^set\s+transaction\b.*\bisolation\s+level\s+(serializable|repeatable\s+read|read\s+committed|read\s+uncommitted)\b`)

// isolation reports whether a statement sets the level of its transaction, and whether that level
// keeps a snapshot.
func isolation(sql string) (snapshot, sets bool) {
	sql = strings.TrimLeft(sql, " \t\r\n")
	if len(sql) < 3 || len(sql) > 1000 || !strings.EqualFold(sql[:3], "set") {
		return false, false // the common case
	}
	level := setsIsolation.FindStringSubmatch(sql)
	if level == nil {
		return false, false
	}
	return keepsSnapshot(strings.Join(strings.Fields(level[1]), " ")), true
}

func keepsSnapshot(level string) bool {
	return slices.Contains([]string{"serializable", "repeatable read"}, strings.ToLower(level))
}

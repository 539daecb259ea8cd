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

// rowLock is what keeps the row of a message as a transaction sees it: above READ COMMITTED all that others change
// after its first statement is a conflict, a renewal of the lease too. So the row is locked by the statement before, and the
// lease is left alone: claims pass over what is locked, for as long as that lasts.
type rowLock struct {
	wanted bool // and not taken yet
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
	// Planned each time: a plan that was kept may be one for an empty queue.
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

// isolation tells whether a statement sets the level of its transaction, and whether to one that keeps a snapshot.
func isolation(sql string) (snapshot, sets bool) {
	sql = strings.TrimLeft(sql, " \t\r\n")
	if len(sql) < 3 || len(sql) > 1000 || !strings.EqualFold(sql[:3], "set") {
		return false, false // as nearly all
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

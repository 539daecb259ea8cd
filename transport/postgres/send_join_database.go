package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// database identifies a database by its name and by the time at which its server started. Another
// server with a database of that name has another time.
type database struct {
	name    string
	started int64 // in microseconds, which no setting of a session formats
}

func (d database) is(other database) bool {
	return d == other
}

const (
	askDatabase = "SELECT current_database(), " + askStarted
	askStarted  = "(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint"
)

// sameDatabase returns an error where tx is not one of the database of the queues.
func (s *store) sameDatabase(ctx context.Context, tx usersTx) error {
	var theirs database
	if err := tx.query(ctx, askDatabase, nil, []any{&theirs.name, &theirs.started}, func() {}); err != nil {
		return err
	}
	ours := s.home.Load()
	if theirs.name != ours.name {
		return fmt.Errorf("it is one of database %q and the queues are in %q: begin it there", theirs.name, ours.name)
	}
	if theirs.is(*ours) {
		return nil
	}
	var now database
	err := s.writes.QueryRow(ctx, askDatabase, pgx.QueryExecModeSimpleProtocol).Scan(&now.name, &now.started)
	if err != nil {
		return fmt.Errorf("ask the server of the queues when it was started: %w", err)
	}
	s.home.Store(&now)
	if !theirs.is(now) {
		server := s.writes.Config().ConnConfig
		return fmt.Errorf("it is one of a database %q of another server, and the queues are in that of %s, port %d: begin it there",
			now.name, server.Host, server.Port)
	}
	return nil
}

// missing returns err, or another error where it is that the table of queue is missing in tx and it
// is there: the server has ended tx, which cannot be asked for its database any more.
func (s *store) missing(ctx context.Context, queue string, err error) error {
	if code(err) != undefinedTable {
		return err
	}
	t := s.table(queue)
	var exists bool
	asked := s.writes.QueryRow(ctx, "SELECT "+regclass(t.quoted)+" IS NOT NULL", pgx.QueryExecModeSimpleProtocol).Scan(&exists)
	if asked != nil || !exists {
		return err
	}
	return fmt.Errorf("it is one of another database, which has no table %s, and the queues are in %q: begin it there",
		t.quoted, s.home.Load().name)
}

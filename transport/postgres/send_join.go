package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
)

// InsertIn implements [tablequeue.Queues]. The savepoint is a round trip of its own: pgx prepares all statements of a
// batch before it executes the first, and one that cannot be prepared would end the transaction.
func (s *store) InsertIn(ctx context.Context, tx any, rows []tablequeue.Row) error {
	users, ok := tx.(pgx.Tx)
	if !ok {
		return fmt.Errorf("postgres: send in a transaction: it is a %T: want a pgx.Tx of github.com/jackc/pgx/v5", tx)
	}
	err := s.sameDatabase(ctx, users)
	if err == nil && len(rows) > 0 {
		err = s.detector.Repeat(ctx, []*tablequeue.Unit{{Rows: rows}}, func() error { return s.insertIn(ctx, users, rows) })
	}
	return failure(err, "send in a transaction")
}

const databaseName = "SELECT current_database()"

// databaseKey is the key of a connection's database in its custom data.
const databaseKey = "holdfast.database"

// sameDatabase asks each connection once. It does not notice another server with a database of the same name and
// tables.
func (s *store) sameDatabase(ctx context.Context, tx pgx.Tx) error {
	known := tx.Conn().PgConn().CustomData()
	name, ok := known[databaseKey].(string)
	if !ok {
		if err := tx.QueryRow(ctx, databaseName).Scan(&name); err != nil {
			return err
		}
		known[databaseKey] = name
	}
	if name != s.database {
		return fmt.Errorf("it is one of database %q and the queues are in %q: begin it there", name, s.database)
	}
	return nil
}

// insertIn leaves tx as it was when it fails, even where ctx has ended.
func (s *store) insertIn(ctx context.Context, tx pgx.Tx, rows []tablequeue.Row) error {
	within, err := tx.Begin(ctx)
	if err != nil {
		return err
	}
	var (
		b      pgx.Batch
		queues []string
		id     int64
	)
	for _, o := range s.groups([]*tablequeue.Unit{{Rows: rows}})[0].outs {
		s.queueSend(&b, o, plain(o.arrays()))
		queues = append(queues, o.to.name)
	}
	b.Queue("SELECT txid_current()").QueryRow(func(row pgx.Row) error { return row.Scan(&id) })
	err = within.SendBatch(ctx, &b).Close()
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), dialect.MaxSavepoint)
	defer cancel()
	if err == nil {
		if err = within.Commit(own); err == nil {
			s.watchCommit(id, queues)
		}
		return err
	}
	if gone := within.Rollback(own); gone != nil {
		return errors.Join(err, fmt.Errorf("the transaction cannot go on: %w", gone))
	}
	return err
}

// plain replaces arrays by slices, which every connection can encode.
func plain(arrays []any) []any {
	for i, a := range arrays {
		switch a := a.(type) {
		case array[text]:
			arrays[i] = convert(a, func(t text) string { return string(t) })
		case array[number]:
			arrays[i] = convert(a, func(n number) int64 { return int64(n) })
		case array[blob]:
			arrays[i] = convert(a, func(b blob) []byte { return bytesOf(b) })
		}
	}
	return arrays
}

// bytesOf returns body, and an empty slice for nil, which would be null.
func bytesOf(body []byte) []byte {
	if body == nil {
		return []byte{}
	}
	return body
}

func convert[To any, From element](a array[From], to func(From) To) []To {
	all := make([]To, len(a))
	for i, e := range a {
		all[i] = to(e)
	}
	return all
}

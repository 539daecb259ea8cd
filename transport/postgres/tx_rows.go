package postgres

import (
	"cmp"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

var (
	_ pgx.Rows         = failedRows{}
	_ pgx.BatchResults = failedBatch{}
)

// batchRows are the last rows of a batch. Reading them closes the batch, whose commit follows the
// last row: Err returns the error of the commit.
type batchRows struct {
	pgx.Rows
	results pgx.BatchResults
	err     error
}

func (r *batchRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

func (r *batchRows) Scan(dest ...any) error { return r.closed(r.Rows.Scan(dest...)) }

func (r *batchRows) Values() ([]any, error) {
	values, err := r.Rows.Values()
	return values, r.closed(err)
}

// closed closes the batch when err has closed its rows.
func (r *batchRows) closed(err error) error {
	if err != nil {
		r.Close()
	}
	return err
}

func (r *batchRows) Close() {
	r.Rows.Close()
	err := r.results.Close()
	r.err = cmp.Or(r.err, err)
}

func (r *batchRows) Err() error { return cmp.Or(r.Rows.Err(), r.err) }

// failedRows is the result of a query that was not sent.
type failedRows struct{ err error }

func (failedRows) Close()                                       {}
func (r failedRows) Err() error                                 { return r.err }
func (failedRows) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (failedRows) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (failedRows) Next() bool                                   { return false }
func (r failedRows) Scan(...any) error                          { return r.err }
func (r failedRows) Values() ([]any, error)                     { return nil, r.err }
func (failedRows) RawValues() [][]byte                          { return nil }
func (failedRows) Conn() *pgx.Conn                              { return nil }
func (failedRows) TypeMap() *pgtype.Map                         { return nil }

// failedBatch is the result of a batch that was not sent.
type failedBatch struct{ err error }

func (b failedBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, b.err }
func (b failedBatch) Query() (pgx.Rows, error)         { return failedRows(b), b.err }
func (b failedBatch) QueryRow() pgx.Row                { return failedRows(b) }
func (b failedBatch) Close() error                     { return b.err }
func (failedBatch) Tx() pgx.Tx                         { return nil }

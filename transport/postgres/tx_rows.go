package postgres

import (
	"cmp"

	"github.com/jackc/pgx/v5"
)

// batchRows are the last rows of a batch. Reading them closes the batch, whose commit follows the last row: Err returns
// the error of the commit.
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

package bench

import (
	"context"
	"errors"

	"github.com/holdfast-go/holdfast/endpoint"
)

// Broker is what a run needs of a broker beyond what its transport does: rows of a
// business table for the work atomic, and a way to leave nothing behind. [Memory],
// [SQLite], [Postgres] and [RabbitMQ] make one.
type Broker interface {
	// prepareRows makes the table name with businessRows rows that count from 0.
	prepareRows(ctx context.Context, name string) error
	// writeRow raises the count of a row in the transaction of the message.
	writeRow(ctx context.Context, s *endpoint.Session, name string, row int) error
	// rowWrites is the sum of the counts.
	rowWrites(ctx context.Context, name string) (int64, error)
	// remove removes the queues, and the table if there is one.
	remove(ctx context.Context, name string, queues []string) error
}

// businessRows is how many rows the handlers share.
const businessRows = 1000

// noRows is for brokers without transactions.
type noRows struct{}

var errNoRows = errors.New("the work atomic needs a transport with a database: sqlite, postgres or memory")

func (noRows) prepareRows(context.Context, string) error { return errNoRows }

func (noRows) writeRow(context.Context, *endpoint.Session, string, int) error { return errNoRows }

func (noRows) rowWrites(context.Context, string) (int64, error) { return 0, errNoRows }

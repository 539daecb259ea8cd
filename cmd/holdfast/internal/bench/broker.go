package bench

import (
	"context"
	"errors"

	"github.com/holdfast-go/holdfast/endpoint"
)

// Broker is what a run needs of a broker beyond what its transport does: a way to leave
// nothing behind, and perhaps a business table. [Memory], [SQLite], [Postgres] and
// [RabbitMQ] make one.
type Broker interface {
	// Remove removes the queues, and the table of that name if there is one.
	Remove(ctx context.Context, name string, queues []string) error
}

// businessTable is implemented by a Broker that has transactions, for the work atomic.
type businessTable interface {
	// prepareRows makes the table name with businessRows rows that count from 0.
	prepareRows(ctx context.Context, name string) error
	// writeRow raises the count of a row in the transaction of the message.
	writeRow(ctx context.Context, s *endpoint.Session, name string, row int) error
	// rowWrites is the sum of the counts.
	rowWrites(ctx context.Context, name string) (int64, error)
}

// businessRows is how many rows the handlers share.
const businessRows = 1000

// ErrNoTransactions is returned for the work atomic on a broker without transactions.
var ErrNoTransactions = errors.New("this work needs a transport with transactions: sqlite, postgres or memory")

package testbed

import (
	"context"
	"errors"
	"sync"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
	"github.com/holdfast-go/holdfast/transport/postgres"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

// Table is a table of counts in the database of the queues. Handlers add to a count in the
// transaction of their message.
type Table interface {
	// Create creates the table with the rows 0 to n-1 and their counts of 0.
	Create(ctx context.Context, name string, n int) error
	// Add adds 1 to the count of a row, in the transaction of the message of s.
	Add(ctx context.Context, s *endpoint.Session, name string, row int) error
	// Counts returns the counts by row.
	Counts(ctx context.Context, name string) (map[int]int, error)
	// Drop deletes the table if there is one.
	Drop(ctx context.Context, name string) error
}

// OwnAdder is implemented by a Table whose rows can be changed without a message too.
type OwnAdder interface {
	// OpenOwn returns a function that adds 1 to the count of a row in a transaction of its own, on
	// up to conns connections, and a function that closes them.
	OpenOwn(ctx context.Context, conns int) (add func(ctx context.Context, name string, row int) error, end func(), err error)
}

// ErrNoTransactions says that a transport has no table.
var ErrNoTransactions = errors.New("the transport has no transactions that handlers can write in: use sqlite, postgres or memory")

// TableOf returns the table of a transport, nil where handlers cannot write in the transaction of a
// message.
func TableOf(t transport.Transport) Table {
	switch t := t.(type) {
	case *inmemory.Transport:
		return &memoryTable{}
	case *sqlite.Transport:
		return sqliteTable(t)
	case *postgres.Transport:
		return postgresTable(t)
	}
	return nil
}

// memoryTable is in the memory of the process.
type memoryTable struct {
	mu     sync.Mutex // guards counts
	counts map[int]int
}

// Create implements [Table].
func (m *memoryTable) Create(_ context.Context, _ string, n int) error {
	m.counts = make(map[int]int, n)
	return nil
}

// Add implements [Table].
func (m *memoryTable) Add(ctx context.Context, s *endpoint.Session, _ string, row int) error {
	return inmemory.OnCommit(ctx, s, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.counts[row]++
	})
}

// Counts implements [Table].
func (m *memoryTable) Counts(context.Context, string) (map[int]int, error) { return m.counts, nil }

// Drop implements [Table].
func (m *memoryTable) Drop(context.Context, string) error { return nil }

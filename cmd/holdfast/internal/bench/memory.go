package bench

import (
	"context"
	"sync"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// Memory is the broker within the process.
func Memory() Broker { return &memory{} }

type memory struct {
	mu   sync.Mutex // guards rows
	rows [businessRows]int64
}

func (m *memory) prepareRows(context.Context, string) error { return nil }

func (m *memory) writeRow(ctx context.Context, s *endpoint.Session, _ string, row int) error {
	return inmemory.OnCommit(ctx, s, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.rows[row]++
	})
}

func (m *memory) rowWrites(context.Context, string) (sum int64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range m.rows {
		sum += n
	}
	return sum, nil
}

func (m *memory) Remove(context.Context, string, []string) error { return nil }

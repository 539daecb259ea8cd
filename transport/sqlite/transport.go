package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

var _ transport.Transport = (*Transport)(nil)

// Transport is a file with queues. Set Path; the other fields have useful zero values.
// It may be opened several times, also in one process.
type Transport struct {
	// Path is the file. Its directory must exist; the file is created. Required.
	Path string
	// Lease is how long a message stays with a process that no longer renews it, such
	// as one that was killed, before it is handed out again. 0: 30 s.
	Lease time.Duration
	// Relaxed has commits not wait for the disk, which is many times faster for a
	// message at a time. After a power failure or a crash of the operating system,
	// the file is sound but may be some moments behind: messages sent last are gone, and
	// those completed last are there again. A killed process loses nothing.
	Relaxed bool
}

// System returns "sqlite".
func (*Transport) System() string { return "sqlite" }

// Open opens the file, and creates or updates the tables. It waits while others do so, until ctx
// ends.
func (t *Transport) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	if t.Lease < 0 {
		return nil, fmt.Errorf("sqlite: Lease %v may not be negative", t.Lease)
	}
	s, err := open(ctx, t.Path, t.Relaxed)
	if err != nil {
		return nil, err
	}
	// With one flusher, what comes while it commits makes one batch: the fewest commits.
	return tablequeue.Open(s, tablequeue.Config{Lease: t.Lease, Flushers: 1, Env: env}), nil
}

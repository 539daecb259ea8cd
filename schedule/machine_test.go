package schedule_test

import (
	"context"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// machine is the transport of one process, with the clock of that process.
type machine struct {
	*inmemory.Transport

	mu    sync.Mutex
	conns []transport.Conn
	ahead time.Duration
}

// memoryConn has the capabilities of a connection in memory.
type memoryConn interface {
	transport.Conn
	transport.Installer
	transport.Verifier
	transport.SubscriptionVerifier
	transport.Remover
	transport.Subscriber
	transport.Canceler
	transport.Inspector
	transport.Browser
	transport.Purger
	transport.OutboxStore
	transport.InboxInspector
	transport.StateInspector
	transport.Hastener
	transport.Checker
}

type machineConn struct {
	memoryConn
	of *machine
}

// Now returns the time of the database, as far as the process knows.
func (c machineConn) Now() time.Time {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	return time.Now().Add(c.of.ahead)
}

func (m *machine) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	c, err := m.Transport.Open(ctx, env)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.conns = append(m.conns, c)
	return machineConn{c.(memoryConn), m}, nil
}

// step lets the time of the process differ from the time of the database.
func (m *machine) step(by, during time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ahead = by
	if during > 0 {
		time.AfterFunc(during, func() { m.step(0, 0) })
	}
}

// cut closes the connections under the process.
func (m *machine) cut() {
	m.mu.Lock()
	conns := m.conns
	m.mu.Unlock()
	for _, c := range conns {
		_ = c.Close() // the process is gone
	}
}

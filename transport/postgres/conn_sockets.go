package postgres

import (
	"context"
	"net"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/transport"
)

// sockets are the network connections of a store. pgx waits when it closes one on which the server
// does not answer; cut does not.
type sockets struct {
	mu   sync.Mutex // guards the rest
	open map[*socket]struct{}
	over bool
}

// socket is a network connection that its sockets know until it is closed.
type socket struct {
	net.Conn
	of *sockets
}

// dial returns inner with a record of its connections.
func (s *sockets) dial(inner pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := inner(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.over {
			_ = conn.Close()
			return nil, transport.ErrClosed
		}
		if s.open == nil {
			s.open = map[*socket]struct{}{}
		}
		c := &socket{conn, s}
		s.open[c] = struct{}{}
		return c, nil
	}
}

// cut closes all connections, and refuses new ones.
func (s *sockets) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	for c := range s.open {
		_ = c.Conn.Close()
	}
	s.open = nil
}

// Close implements [net.Conn].
func (c *socket) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

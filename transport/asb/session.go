package asb

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

const (
	// dialTimeout bounds a connection attempt.
	dialTimeout = 10 * time.Second
	// closeTimeout bounds the farewell to a peer that may not answer.
	closeTimeout = 2 * time.Second
	// silence is after how long a silent peer is asked whether it is still there.
	silence = 10 * time.Second
)

// session is a connection and the client that works on it. The client library would dial again by itself, and wait for seconds
// before it does; here one client has one connection, and when that is lost the session is over at once, with all
// that is under way on it.
type session struct {
	client *azservicebus.Client
	socket *socket
	ctx    context.Context //nolint:containedctx // the connection's life
	end    context.CancelCauseFunc
}

// spentError is returned to the client library when it wants to connect again.
type spentError struct{}

func (spentError) Error() string { return errLost.Error() }
func (spentError) NonRetriable() {}
func (spentError) Unwrap() error { return errLost }

func (n *namespace) open(ctx context.Context) (*session, error) {
	c, err := n.dial(ctx)
	if err != nil {
		return nil, err
	}
	s := &session{}
	s.ctx, s.end = context.WithCancelCause(context.Background())
	s.socket = newSocket(c, func() { s.end(errLost) })
	var spent atomic.Bool
	options := &azservicebus.ClientOptions{
		ApplicationID: n.application,
		RetryOptions:  azservicebus.RetryOptions{MaxRetries: -1},
		// Of any kind of connection, this is how to hand one in.
		NewWebSocketConn: func(context.Context, azservicebus.NewWebSocketConnArgs) (net.Conn, error) {
			if spent.Swap(true) {
				return nil, spentError{}
			}
			return s.socket, nil
		},
	}
	if n.connectionString != "" {
		s.client, err = azservicebus.NewClientFromConnectionString(n.connectionString, options)
		if err != nil {
			err = errConnectionString
		}
	} else {
		s.client, err = azservicebus.NewClient(n.host, n.credential, options)
	}
	if err != nil {
		_ = s.socket.Close()
		return nil, err
	}
	return s, nil
}

func (s *session) alive() bool { return s.ctx.Err() == nil }

// close says farewell, and returns when the client's goroutines have ended or will presently.
func (s *session) close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if !s.alive() {
		cancel()
	}
	// A client that waits for a peer without an answer is freed by the end of its socket.
	stop := context.AfterFunc(ctx, func() { _ = s.socket.Close() })
	_ = s.client.Close(ctx) // closed whatever the error
	stop()
	_ = s.socket.Close()
	s.end(errLost)
}

// on is ctx for what is done on the session: it ends with that too.
func (s *session) on(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.ctx, func() { cancel(errLost) })
	return ctx, func() { stop(); cancel(nil) }
}

// lostIn is err, or that the session was lost where err came of its end.
func (s *session) lostIn(ctx context.Context, err error) error {
	if err != nil && ctx.Err() == nil && !s.alive() {
		return errors.Join(errLost)
	}
	return err
}

// socket tells of its end.
type socket struct {
	net.Conn
	claims *claims
	lost   func()
	once   sync.Once
	err    error
}

func newSocket(c net.Conn, lost func()) *socket {
	s := &socket{Conn: c, lost: lost}
	s.claims = newClaims(s)
	return s
}

func (s *socket) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	s.claims.received(b[:n])
	if err != nil {
		s.lost()
	}
	return n, err
}

// Write writes a frame: the client library calls it with one each time.
func (s *socket) Write(b []byte) (int, error) { return s.claims.send(b) }

func (s *socket) transmit(b []byte) (int, error) {
	n, err := s.Conn.Write(b)
	if err != nil {
		s.lost()
	}
	return n, err
}

// Close closes once: the client library and the session both do.
func (s *socket) Close() error {
	s.once.Do(func() {
		s.lost()
		s.err = s.Conn.Close()
		s.claims.close()
	})
	return s.err
}

package asb

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/holdfast-go/holdfast/internal/backoff"
)

const (
	// dialTimeout bounds a dial.
	dialTimeout = 10 * time.Second
	// closeTimeout bounds the orderly end of a link or connection, whose peer may not answer.
	closeTimeout = 2 * time.Second
	// keepAlive is the time without traffic after which the system probes a connection.
	keepAlive = 10 * time.Second
)

// client is the library's client, with exactly one connection. The library would redial by itself,
// after a pause of seconds. Here the client ends with its connection, and with it all requests that
// are in flight.
type client struct {
	*azservicebus.Client
	socket *socket
	ctx    context.Context //nolint:containedctx // ends with the connection
	end    context.CancelCauseFunc
}

// spentError refuses the library a second connection.
type spentError struct{}

func (spentError) Error() string { return errLost.Error() }
func (spentError) NonRetriable() {}
func (spentError) Unwrap() error { return errLost }

// open connects. The credential is shown with the first link.
func (n *namespace) open(ctx context.Context) (*client, error) {
	c, err := n.dial(ctx)
	if err != nil {
		return nil, err
	}
	cl := &client{}
	cl.ctx, cl.end = context.WithCancelCause(context.Background())
	cl.socket = newSocket(c, func() { cl.end(errLost) })
	var spent atomic.Bool
	options := &azservicebus.ClientOptions{
		ApplicationID: n.application,
		RetryOptions:  azservicebus.RetryOptions{MaxRetries: -1},
		// The library accepts an existing connection of any kind by this function only.
		NewWebSocketConn: func(context.Context, azservicebus.NewWebSocketConnArgs) (net.Conn, error) {
			if spent.Swap(true) {
				return nil, spentError{}
			}
			return cl.socket, nil
		},
	}
	if n.ConnectionString != "" {
		cl.Client, err = azservicebus.NewClientFromConnectionString(n.ConnectionString, options)
		if err != nil {
			err = errConnectionString
		}
	} else {
		cl.Client, err = azservicebus.NewClient(n.Namespace, n.Credential, options)
	}
	if err != nil {
		_ = cl.socket.Close()
		return nil, err
	}
	return cl, nil
}

func (cl *client) alive() bool { return cl.ctx.Err() == nil }

// close ends the connection in an orderly way within closeTimeout, and returns when the library's
// goroutines have ended or are about to.
func (cl *client) close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if !cl.alive() {
		cancel()
	}
	// Closing the socket ends the library's wait for a peer that does not answer.
	stop := context.AfterFunc(ctx, func() { _ = cl.socket.Close() })
	_ = cl.Close(ctx) // closed whatever the error
	stop()
	_ = cl.socket.Close()
	cl.end(errLost)
}

// cause returns why a request failed: the cause of ctx, or the loss of the connection, else err.
func (cl *client) cause(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case !cl.alive():
		return errLost
	}
	return err
}

// socket is a connection that reports its loss.
type socket struct {
	net.Conn
	claims claims
	lost   func()
	once   sync.Once
	err    error // of Close
}

func newSocket(c net.Conn, lost func()) *socket {
	s := &socket{Conn: c, lost: lost}
	s.claims = claims{socket: s, pace: backoff.Backoff{Min: throttleMin, Max: throttleMax}}
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

// Write writes a frame: each of the library's writes is a whole frame.
func (s *socket) Write(b []byte) (int, error) { return s.claims.send(b) }

func (s *socket) transmit(b []byte) (int, error) {
	n, err := s.Conn.Write(b)
	if err != nil {
		s.lost()
	}
	return n, err
}

// Close is idempotent, because the library and the client both call it.
func (s *socket) Close() error {
	s.once.Do(func() {
		s.lost()
		s.err = s.Conn.Close()
		s.claims.close()
	})
	return s.err
}

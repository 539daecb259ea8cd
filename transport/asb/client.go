package asb

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/callback"
	"github.com/holdfast-go/holdfast/transport"
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

const (
	redialMin = 50 * time.Millisecond
	redialMax = 5 * time.Second
)

// supervisor keeps a client connected: after the loss of its connection it dials another. Sending
// has a supervisor, and each receiver has one, because the library may take the error of one link
// for the end of its connection, with all links on it.
type supervisor struct {
	ns      *namespace
	turn    chan struct{} // holds a token while the fields below are not in use
	closed  bool
	current *client
	pace    backoff.Backoff
	wait    time.Duration // from the next dial to the one after it
	dialed  time.Time     // of the last dial
	next    time.Time     // of the next dial, at the earliest
	err     error         // of the last dial

	throttle *throttle

	closing sync.WaitGroup // former clients
}

func newSupervisor(ns *namespace) *supervisor {
	v := &supervisor{ns: ns, turn: make(chan struct{}, 1), pace: backoff.Backoff{Min: redialMin, Max: redialMax}, throttle: newThrottle()}
	v.turn <- struct{}{}
	return v
}

// client returns the connected client, or dials. Between two dials there is a pause: after a failed
// dial client fails with its error until the pause is over, and after a connection that soon was
// lost it waits.
func (v *supervisor) client(ctx context.Context) (*client, error) {
	select {
	case <-v.turn:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { v.turn <- struct{}{} }()
	switch {
	case v.closed:
		return nil, transport.ErrClosed
	case v.current != nil && v.current.alive():
		return v.current, nil
	case v.current != nil && time.Since(v.dialed) > redialMax:
		v.wait = 0 // the connection lasted
		v.pace.Reset()
	}
	v.drop()
	if pause := time.Until(v.next); pause > 0 && (v.err != nil || backoff.Sleep(ctx, pause) != nil) {
		return nil, cmp.Or(v.err, context.Cause(ctx))
	}
	cl, err := v.ns.open(ctx)
	if err != nil && ctx.Err() != nil {
		return nil, err // says nothing about the namespace
	}
	v.dialed = time.Now()
	v.next, v.wait = v.dialed.Add(v.wait), v.pace.Next()
	v.current, v.err = cl, err
	return cl, err
}

// drop closes the current client in a goroutine.
func (v *supervisor) drop() {
	if cl := v.current; cl != nil {
		v.current = nil
		v.closing.Go(cl.close)
	}
}

// close ends the supervisor and waits for its goroutines.
func (v *supervisor) close() {
	<-v.turn // a dial in progress ends within dialTimeout
	v.closed = true
	v.drop()
	v.turn <- struct{}{}
	v.closing.Wait()
}

// namespace is the configuration of a Transport, with what stands for fields that are not set.
type namespace struct {
	Transport
	entity      string   // of the connection string; "" if it is valid for all
	insecure    bool     // an emulator's
	manage      *url.URL // of the administration; without a host for the namespace's
	application string   // name of the client in the service's logs
}

var errConnectionString = errors.New(`asb: the connection string is not valid: write "Endpoint=sb://NAME.servicebus.windows.net/;SharedAccessKeyName=…;SharedAccessKey=…", as the portal shows it`)

func newNamespace(t *Transport, env transport.Env) (*namespace, error) {
	n := &namespace{Transport: *t, application: cmp.Or(env.Endpoint, "holdfast")}
	n.MaxDeliveryCount = cmp.Or(n.MaxDeliveryCount, defaultDeliveryCount)
	n.MaxSize = cmp.Or(n.MaxSize, defaultMaxSize)
	n.MaxMessageSize = cmp.Or(n.MaxMessageSize, defaultMessageSize)
	n.Links = cmp.Or(n.Links, defaultLinks)
	switch {
	case n.ConnectionString == "" && n.Namespace == "":
		return nil, errors.New("asb: neither Transport.ConnectionString nor Transport.Namespace and Credential are set")
	case n.ConnectionString != "" && n.Namespace != "":
		return nil, errors.New("asb: Transport.ConnectionString and Transport.Namespace are both set: one names the namespace")
	case n.Namespace != "" && n.Credential == nil:
		return nil, errors.New("asb: Transport.Namespace is set without Transport.Credential: use one of package azidentity")
	case n.ConnectionString != "":
		if err := n.parse(); err != nil {
			return nil, err
		}
	default:
		n.Credential = newCredential(n.Credential)
	}
	host, port, err := net.SplitHostPort(n.Namespace)
	if err != nil { // it has no port
		host = n.Namespace
	}
	if n.insecure {
		port = cmp.Or(port, "5672")
		n.Administration = cmp.Or(n.Administration, "http://"+net.JoinHostPort(host, "5300"))
	}
	n.Address = cmp.Or(n.Address, net.JoinHostPort(host, cmp.Or(port, "5671")))
	n.manage, err = url.Parse(n.Administration)
	if err != nil || n.Administration != "" && (n.manage.Host == "" || n.manage.User != nil) {
		return nil, errors.New("asb: Transport.Administration is no URL: write http://HOST:PORT or https://HOST")
	}
	return n, nil
}

// parse reads the connection string. Errors repeat no part of it, which may be a misplaced key.
func (n *namespace) parse() error {
	values := map[string]string{"usedevelopmentemulator": "false"}
	for part := range strings.SplitSeq(n.ConnectionString, ";") {
		name, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok && name != "" {
			return errConnectionString
		}
		values[strings.ToLower(name)] = value
	}
	key := values["sharedaccesskey"] + values["sharedaccesssignature"]
	u, err := url.Parse(values["endpoint"])
	if err != nil || u.Scheme != "sb" || u.Host == "" || u.User != nil || key == "" {
		return errConnectionString
	}
	if n.insecure, err = strconv.ParseBool(values["usedevelopmentemulator"]); err != nil {
		return errConnectionString
	}
	n.Namespace, n.entity = u.Host, values["entitypath"]
	return nil
}

// dial opens a connection, with TLS except to an emulator.
func (n *namespace) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, dialTimeout, errNoReply)
	defer cancel()
	c, err := n.socket(ctx)
	if err == nil {
		return c, nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return nil, fmt.Errorf("asb: connect to %s: %w", n.Address, err)
}

func (n *namespace) socket(ctx context.Context) (net.Conn, error) {
	if n.WebSocket != nil {
		return n.webSocket(ctx)
	}
	d := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: keepAlive, Interval: keepAlive / 2, Count: 3}}
	c, err := d.DialContext(ctx, "tcp", n.Address)
	if err != nil || n.insecure {
		return c, err
	}
	config := cmp.Or(n.TLS, &tls.Config{MinVersion: tls.VersionTLS12}).Clone()
	if config.ServerName == "" {
		config.ServerName, _, _ = strings.Cut(n.Namespace, ":")
	}
	secure := tls.Client(c, config)
	// The configuration may have functions: one that hangs is left when ctx ends.
	if err := callback.Run(ctx, func() error { return secure.HandshakeContext(ctx) }); err != nil {
		_ = c.Close() // the handshake's error says more
		return nil, err
	}
	return secure, nil
}

// webSocket calls the function of the user, and waits for it until ctx ends.
func (n *namespace) webSocket(ctx context.Context) (net.Conn, error) {
	return callback.Open(ctx, func() (net.Conn, error) {
		c, err := n.WebSocket(ctx, "wss://"+n.Namespace+"/$servicebus/websocket")
		if c == nil && err == nil {
			err = errors.New("Transport.WebSocket returned no connection")
		}
		return c, err
	})
}

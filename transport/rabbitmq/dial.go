package rabbitmq

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/callback"
	"github.com/holdfast-go/holdfast/transport"
)

const (
	defaultHeartbeat = 10 * time.Second
	// dialTimeout bounds a connection attempt with all its handshakes.
	dialTimeout = 5 * time.Second
	// closeTimeout bounds the closing handshake with a peer that may not answer.
	closeTimeout = 2 * time.Second
)

// dialer opens connections to a server, or to the next one of a cluster that answers.
type dialer struct {
	nodes       []node
	first       atomic.Uint32 // index of the node to try first
	tls         *tls.Config
	heartbeat   time.Duration
	name        string // of the connections, shown by the broker's tools
	user        string // of the URL; "" where the server identifies the user by other means
	credentials func(context.Context) (Credentials, error)
}

// node is one server.
type node struct {
	uri     amqp.URI
	url     string // for the client library, which does not begin TLS
	address string
	where   string // host, port and virtual host: the URL without its secrets
}

// brokerConn is an open connection with its login.
type brokerConn struct {
	*amqp.Connection
	link   *link
	login  Credentials // zero: those of the URL
	user   string      // the only value of the property user-id that the broker accepts; "" where it is unknown
	closed chan *amqp.Error
}

func (c *brokerConn) lost() <-chan *amqp.Error { return c.closed }

func (c *brokerConn) lossReason(e *amqp.Error) error { return c.link.in.lossReason(e) }

// close waits no longer than closeTimeout for the peer.
func (c *brokerConn) close() {
	// The connection is closed whatever the error.
	_ = c.CloseDeadline(time.Now().Add(closeTimeout))
}

var errURL = errors.New(`rabbitmq: the URL is not valid: write amqp://user:password@host:port/vhost, ` +
	`with special characters in user, password and vhost percent-encoded`)

var errHosts = errors.New("rabbitmq: Transport.Hosts: an entry is neither host nor host:port: " +
	"user and virtual host are those of the URL")

func newDialer(t *Transport, env transport.Env) (*dialer, error) {
	u, err := parseURL(t.URL)
	if err != nil {
		return nil, err
	}
	d := &dialer{
		tls: t.TLS, heartbeat: cmp.Or(t.Heartbeat, defaultHeartbeat), name: cmp.Or(t.ConnectionName, env.Endpoint),
		credentials: t.Credentials,
	}
	if d.heartbeat < time.Second {
		return nil, fmt.Errorf("rabbitmq: Heartbeat %v: it is at least a second, or 0 for %v", d.heartbeat, defaultHeartbeat)
	}
	for _, host := range t.Hosts {
		if host == "" || strings.ContainsAny(host, "@/?#") {
			return nil, errHosts
		}
	}
	for _, host := range append([]string{u.Host}, t.Hosts...) {
		n, err := newNode(*u, host)
		if err != nil {
			return nil, err
		}
		d.nodes = append(d.nodes, n)
	}
	switch uri, err := amqp.ParseURI(u.String()); {
	case t.Credentials != nil && u.User != nil:
		return nil, errors.New("rabbitmq: the URL names a user and Transport.Credentials is set: leave one of them out")
	case t.Credentials == nil && err == nil && len(uri.AuthMechanism) == 0:
		d.user = uri.Username
	}
	return d, nil
}

// parseURL checks a URL. Its errors do not repeat those of url.Parse, which quote the URL: a
// password with a stray slash looks like a port.
func parseURL(text string) (*url.URL, error) {
	if text == "" {
		return nil, errors.New("rabbitmq: Transport.URL is empty")
	}
	u, err := url.Parse(text)
	if err != nil || u.Fragment != "" || strings.Contains(u.Host+u.Path+u.RawQuery, "@") {
		return nil, errURL
	}
	if u.Scheme != "amqp" && u.Scheme != "amqps" {
		return nil, errors.New("rabbitmq: the URL has to begin with amqp:// or amqps://")
	}
	return u, nil
}

// vhost returns the virtual host of the connections.
func (d *dialer) vhost() string { return d.nodes[0].uri.Vhost }

// newNode returns the server of a URL on another host.
func newNode(u url.URL, host string) (node, error) {
	u.Host = host
	uri, err := amqp.ParseURI(u.String())
	if err != nil {
		return node{}, errURL
	}
	u.Scheme = "amqp"
	address := net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port))
	return node{uri, u.String(), address, fmt.Sprintf("%s, virtual host %q", address, uri.Vhost)}, nil
}

// dial opens a connection with the purpose in its name. Of several servers it tries the one that
// answered last first.
func (d *dialer) dial(ctx context.Context, purpose string) (*brokerConn, error) {
	login, err := d.ask(ctx)
	if err != nil {
		return nil, err
	}
	var errs []error
	first := int(d.first.Load())
	for i := range d.nodes {
		at := (first + i) % len(d.nodes)
		b, err := d.dialNode(ctx, &d.nodes[at], login, purpose)
		if err == nil {
			d.first.Store(uint32(at))
			return b, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(errs...)
}

func (d *dialer) dialNode(
	ctx context.Context, n *node, login Credentials, purpose string,
) (*brokerConn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, dialTimeout, errors.New("no answer in time"))
	defer cancel()
	b, err := d.handshake(ctx, n, login, purpose)
	if err == nil {
		return b, nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return nil, fmt.Errorf("rabbitmq: connect to %s: %w", n.where, n.advised(err))
}

func (d *dialer) handshake(
	ctx context.Context, n *node, login Credentials, purpose string,
) (*brokerConn, error) {
	socket, err := (&net.Dialer{}).DialContext(ctx, "tcp", n.address)
	if err != nil {
		return nil, err
	}
	out := newCoalescer(socket)
	b := &brokerConn{login: login, user: cmp.Or(d.user, login.user)}
	config := amqp.Config{
		Heartbeat: d.heartbeat, SASL: login.sasl(),
		Properties: amqp.Table{
			"product": "Holdfast", "platform": "Go", "connection_name": strings.TrimSpace(d.name + " " + purpose),
		},
		Dial: func(string, string) (_ net.Conn, err error) {
			b.link, err = d.newLink(ctx, n, out)
			return b.link, err
		},
	}
	// The handshakes have no context: a deadline in the past ends them.
	abort := func() { _ = socket.SetDeadline(time.Unix(1, 0)) }
	err = abortable(ctx, abort, func() (err error) {
		b.Connection, err = amqp.DialConfig(n.url, config)
		return err
	})
	if err != nil {
		_ = out.Close()
		return nil, err
	}
	b.closed = b.NotifyClose(make(chan *amqp.Error, 1))
	return b, nil
}

// abortable runs f, which has no context, and calls abort when ctx ends before f.
func abortable(ctx context.Context, abort func(), f func() error) error {
	aborted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(aborted)
		abort()
	})
	err := f()
	if stop() {
		return err
	}
	<-aborted
	return context.Cause(ctx)
}

// version is a broker's version number.
type version struct{ major, minor int }

// Releases that differ in what a driver can rely on.
var (
	release40 = version{4, 0} // quorum queues drop messages after 20 returns by default; bodies are up to 16 MiB
	release43 = version{4, 3} // released messages are not counted; quorum queues time single messages out
)

func (v version) atLeast(w version) bool {
	return v.major > w.major || v.major == w.major && v.minor >= w.minor
}

// Credentials identify the user of a connection, see [Transport].Credentials. They are made by
// [Password], [Token] and [External]; the zero value identifies no user and is refused. Formatting
// them shows no secret.
type Credentials struct {
	mechanism string
	user      string
	secret    string
	expires   time.Time
}

// Password returns the credentials of a user with a password.
func Password(user, password string) Credentials {
	return Credentials{mechanism: "PLAIN", user: user, secret: password}
}

// Token returns credentials with an OAuth 2 access token, for a broker with the plugin
// rabbitmq_auth_backend_oauth2. An open connection gets a new token when three quarters of the time
// until expires have passed. Where expires is the zero time, a connection keeps its first token.
func Token(token string, expires time.Time) Credentials {
	return Credentials{mechanism: "PLAIN", secret: token, expires: expires}
}

// External returns credentials with which the broker identifies the user by the client's TLS
// certificate, for a broker with the plugin rabbitmq_auth_mechanism_ssl. The URL has to begin with
// amqps://, and the certificate is that of [Transport].TLS, or certfile and keyfile of the URL.
func External() Credentials { return Credentials{mechanism: "EXTERNAL"} }

// Format implements [fmt.Formatter] and writes the SASL mechanism alone.
func (c Credentials) Format(f fmt.State, _ rune) {
	_, _ = io.WriteString(f, "rabbitmq credentials "+c.mechanism) // f keeps the error
}

// sasl returns the mechanism for the client library: nil for that of the URL.
func (c Credentials) sasl() []amqp.Authentication {
	switch c.mechanism {
	case "":
		return nil
	case "EXTERNAL":
		return []amqp.Authentication{&amqp.ExternalAuth{}}
	default:
		return []amqp.Authentication{&amqp.PlainAuth{Username: c.user, Password: c.secret}}
	}
}

// authorize adds the credentials to a request to the management API.
func (c Credentials) authorize(r *http.Request) {
	switch {
	case c.user != "":
		r.SetBasicAuth(c.user, c.secret)
	case c.secret != "":
		r.Header.Set("Authorization", "Bearer "+c.secret)
	}
}

const (
	// credentialsTimeout bounds a call of [Transport].Credentials.
	credentialsTimeout = 10 * time.Second
	// minTokenPause is the shortest time between two requests for a new token.
	minTokenPause = time.Second
)

// ask returns the credentials of [Transport].Credentials, or zero ones where those of the URL are
// used.
func (d *dialer) ask(ctx context.Context) (Credentials, error) {
	if d.credentials == nil {
		return Credentials{}, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, credentialsTimeout, errors.New("no answer in time"))
	defer cancel()
	var answer Credentials
	err := callback.Run(ctx, func() (err error) {
		answer, err = d.credentials(ctx)
		return err
	})
	switch {
	case err != nil:
		return Credentials{}, fmt.Errorf("rabbitmq: Transport.Credentials: %w", err)
	case answer.mechanism == "":
		return Credentials{}, errors.New("rabbitmq: Transport.Credentials returned none: use Password, Token or External")
	default:
		return answer, nil
	}
}

// link is the connection of the client library, which reads through a [frameReader] and writes
// through a [coalescer].
type link struct {
	net.Conn
	in  *frameReader
	out *coalescer
}

func (l *link) Read(p []byte) (int, error) { return l.in.Read(p) }

// recordConn is a [coalescer] that reads ahead, because TLS reads record by record.
type recordConn struct {
	*coalescer
	in *bufio.Reader
}

func (c *recordConn) Read(p []byte) (int, error) { return c.in.Read(p) }

// newLink returns a link over a connection to the node. TLS is begun here and not by the client
// library, because the frameReader reads plain text. The configuration may have functions: one that
// hangs is left when ctx ends.
func (d *dialer) newLink(ctx context.Context, n *node, out *coalescer) (*link, error) {
	if n.uri.Scheme == "amqp" {
		return &link{out, newFrameReader(out), out}, nil
	}
	config, err := d.tlsConfig(&n.uri)
	if err != nil {
		return nil, err
	}
	c := tls.Client(&recordConn{out, bufio.NewReaderSize(out, readAhead)}, config)
	if err := callback.Run(ctx, c.Handshake); err != nil {
		return nil, err
	}
	return &link{c, newFrameReader(c), out}, nil
}

// tlsConfig returns the configuration that the user has set, or that of the URL.
func (d *dialer) tlsConfig(uri *amqp.URI) (*tls.Config, error) {
	config := &tls.Config{ServerName: uri.ServerName, MinVersion: tls.VersionTLS12}
	if d.tls != nil {
		config = d.tls.Clone()
	} else if err := useFiles(config, uri); err != nil {
		return nil, err
	}
	if config.ServerName == "" {
		config.ServerName = uri.Host
	}
	return config, nil
}

// useFiles loads the files that a URL names. Without cacertfile the system's authorities are
// trusted.
func useFiles(config *tls.Config, uri *amqp.URI) error {
	if uri.CACertFile != "" {
		pem, err := os.ReadFile(uri.CACertFile)
		if err != nil {
			return fmt.Errorf("cacertfile of the URL: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("cacertfile of the URL: %s holds no certificate in PEM form", uri.CACertFile)
		}
	}
	if uri.CertFile == "" || uri.KeyFile == "" {
		return nil
	}
	own, err := tls.LoadX509KeyPair(uri.CertFile, uri.KeyFile)
	if err != nil {
		return fmt.Errorf("certfile and keyfile of the URL: %w", err)
	}
	config.Certificates = []tls.Certificate{own}
	return nil
}

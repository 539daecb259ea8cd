package rabbitmq

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/transport"
)

const (
	defaultHeartbeat = 10 * time.Second
	// dialTimeout bounds a connection attempt with all its handshakes.
	dialTimeout = 5 * time.Second
	// closeTimeout bounds the farewell to a peer that may not answer.
	closeTimeout = 2 * time.Second
)

// dialer opens connections to a server, or to the next of several that is there.
type dialer struct {
	nodes     []node
	next      atomic.Uint32 // of nodes, to be tried first
	tls       *tls.Config
	heartbeat time.Duration
	name      string // of the connection, shown by the broker's tools
	user      string // "" where the server finds out by other means
}

// node is one server.
type node struct {
	url     string
	address string
	where   string // host, port and virtual host: the URL without its secrets
}

var errURL = errors.New(`rabbitmq: the URL is not valid: write amqp://user:password@host:port/vhost, ` +
	`with special characters in user, password and vhost percent-encoded`)

var errHosts = errors.New("rabbitmq: Transport.Hosts holds something else than host or host:port: user and virtual host are those of the URL")

func newDialer(t *Transport, env transport.Env) (*dialer, error) {
	u, err := parseURL(t.URL)
	if err != nil {
		return nil, err
	}
	d := &dialer{tls: t.TLS, heartbeat: t.Heartbeat, name: cmp.Or(t.ConnectionName, env.Endpoint)}
	if d.heartbeat == 0 {
		d.heartbeat = defaultHeartbeat
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
	if uri, err := amqp.ParseURI(u.String()); err == nil && len(uri.AuthMechanism) == 0 {
		d.user = uri.Username
	}
	return d, nil
}

// parseURL checks a URL. Its errors do not repeat what url.Parse says, because
// that quotes from the URL, and a password with a stray slash looks like a port.
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

// newNode is the server of a URL on another host.
func newNode(u url.URL, host string) (node, error) {
	u.Host = host
	uri, err := amqp.ParseURI(u.String())
	if err != nil {
		return node{}, errURL
	}
	n := node{url: u.String(), address: net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port))}
	n.where = fmt.Sprintf("%s, virtual host %q", n.address, uri.Vhost)
	return n, nil
}

// dial opens a connection; purpose tells it from others of the same endpoint. Of several servers it
// tries first the one that worked last.
func (d *dialer) dial(ctx context.Context, purpose string) (*amqp.Connection, *link, error) {
	var errs []error
	first := int(d.next.Load())
	for i := range d.nodes {
		at := (first + i) % len(d.nodes)
		c, l, err := d.dialNode(ctx, &d.nodes[at], purpose)
		if err == nil {
			d.next.Store(uint32(at))
			return c, l, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, nil, errors.Join(errs...)
}

func (d *dialer) dialNode(ctx context.Context, n *node, purpose string) (*amqp.Connection, *link, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, dialTimeout, errors.New("no answer in time"))
	defer cancel()
	c, l, err := d.handshake(ctx, n, purpose)
	if err == nil {
		return c, l, nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return nil, nil, fmt.Errorf("rabbitmq: connect to %s: %w", n.where, n.advised(err))
}

func (d *dialer) handshake(ctx context.Context, n *node, purpose string) (*amqp.Connection, *link, error) {
	socket, err := (&net.Dialer{}).DialContext(ctx, "tcp", n.address)
	if err != nil {
		return nil, nil, err
	}
	out := newCoalescer(socket)
	config := d.config(purpose)
	var l *link
	config.Dial = func(string, string) (net.Conn, error) {
		l, err = d.newLink(n, out)
		return l, err
	}
	var c *amqp.Connection
	// The handshakes know no context: a deadline in the past wakes them.
	wake := func() { _ = socket.SetDeadline(time.Unix(1, 0)) }
	err = abortable(ctx, wake, func() (err error) {
		c, err = amqp.DialConfig(n.plainURL(), config)
		return err
	})
	if err != nil {
		_ = out.Close()
		return nil, nil, err
	}
	return c, l, nil
}

// abortable runs f, which knows no context, and abort when ctx ends before f.
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

func (d *dialer) config(purpose string) amqp.Config {
	return amqp.Config{
		Heartbeat: d.heartbeat,
		Properties: amqp.Table{
			"product":         "Holdfast",
			"platform":        "Go",
			"connection_name": strings.TrimSpace(d.name + " " + purpose),
		},
	}
}

// plain is an error of the client library in words: without its wrapping of a code
// and a quoted text, and with what the user can do.
func plain(err error) error {
	var e *amqp.Error
	if !errors.As(err, &e) {
		return err
	}
	switch {
	case e == amqp.ErrCredentials:
		return errors.New("user name or password refused, or the connection was cut while logging in")
	case e.Code == amqp.NotFound && strings.Contains(e.Reason, "no queue"):
		return fmt.Errorf("%w: the broker says %d %s", transport.ErrNoQueue, e.Code, e.Reason)
	case e.Code == amqp.PreconditionFailed && inequivalent.MatchString(e.Reason):
		return errors.New(difference(e.Reason))
	case e.Code == amqp.PreconditionFailed && strings.Contains(e.Reason, "acknowledgement on channel"):
		return fmt.Errorf("the broker took the messages of the channel back, as one was held for longer than its consumer_timeout: %d %s", e.Code, e.Reason)
	case e.Server:
		return fmt.Errorf("the broker says %d %s", e.Code, userText.ReplaceAllString(e.Reason, ""))
	default:
		return errors.New(e.Reason)
	}
}

// userText is in what the broker says of missing rights. The user's name is nobody's business.
var userText = regexp.MustCompile(` for user '[^']*'`)

// inequivalent is what the broker says of a declaration that meets something else of that name.
var inequivalent = regexp.MustCompile(`inequivalent arg '([^']*)' for .*: received (.*) but current is (.*)$`)

// difference is that in words.
func difference(reason string) string {
	const text = `it exists with another %s: %s in the place of %s`
	parts := inequivalent.FindStringSubmatch(reason)
	return fmt.Sprintf(text, parts[1], valueText(parts[3]), valueText(parts[2]))
}

// valueText is "the value '20' of type 'long'" without what nobody needs.
func valueText(s string) string {
	s, _, _ = strings.Cut(strings.TrimPrefix(s, "the value "), " of type ")
	return s
}

// isCode tells whether the broker closed a channel for the given reason.
func isCode(err error, code int) bool {
	var e *amqp.Error
	return errors.As(err, &e) && e.Code == code
}

// hangUp says farewell and closes, without waiting for long for a peer that does not answer.
func hangUp(c *amqp.Connection) {
	// The connection is closed whatever the error.
	_ = c.CloseDeadline(time.Now().Add(closeTimeout))
}

// version is a broker's version number.
type version struct{ major, minor int }

// Releases that changed what a driver can rely on.
var (
	release40 = version{4, 0} // limits: a quorum queue drops what came back 20 times, bodies are up to 16 MiB
	release43 = version{4, 3} // counts: what is given back is no attempt; quorum queues take back by themselves
)

func versionOf(c *amqp.Connection) version {
	text, _ := c.Properties["version"].(string)
	var v version
	// What cannot be read stays 0: the oldest behaviour is assumed.
	_, _ = fmt.Sscanf(text, "%d.%d", &v.major, &v.minor)
	return v
}

func (v version) atLeast(w version) bool {
	return v.major > w.major || v.major == w.major && v.minor >= w.minor
}

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

	"github.com/holdfast-go/holdfast/internal/callback"
	"github.com/holdfast-go/holdfast/transport"
)

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

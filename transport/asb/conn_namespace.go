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

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"

	"github.com/holdfast-go/holdfast/transport"
)

// namespace is the address of a namespace, with a credential.
type namespace struct {
	connectionString string
	credential       azcore.TokenCredential
	host             string // with a port where that is not the usual one
	entity           string // of the connection string; "" if it is valid for all
	insecure         bool   // an emulator's

	address        string // to be dialled
	webSocket      func(ctx context.Context, url string) (net.Conn, error)
	tls            *tls.Config
	administration string // URL; "" for the namespace's
	application    string // name of the client in the service's logs
}

var (
	errConnectionString = errors.New(`asb: the connection string is not valid: write "Endpoint=sb://NAME.servicebus.windows.net/;SharedAccessKeyName=…;SharedAccessKey=…", as the portal shows it`)
	errNoNamespace      = errors.New("asb: neither Transport.ConnectionString nor Transport.Namespace and Credential are set")
	errTwoNamespaces    = errors.New("asb: Transport.ConnectionString and Transport.Namespace are both set: one names the namespace")
	errNoCredential     = errors.New("asb: Transport.Namespace is set without Transport.Credential: use one of package azidentity")
	errAdministration   = errors.New("asb: Transport.Administration is no URL: write http://HOST:PORT or https://HOST")
)

func newNamespace(t *Transport, env transport.Env) (*namespace, error) {
	n := &namespace{
		connectionString: t.ConnectionString, credential: t.Credential, host: t.Namespace,
		webSocket: t.WebSocket, tls: t.TLS, administration: t.Administration,
		application: cmp.Or(env.Endpoint, "holdfast"),
	}
	switch {
	case t.ConnectionString == "" && t.Namespace == "":
		return nil, errNoNamespace
	case t.ConnectionString != "" && t.Namespace != "":
		return nil, errTwoNamespaces
	case t.Namespace != "" && t.Credential == nil:
		return nil, errNoCredential
	case t.ConnectionString != "":
		if err := n.parse(); err != nil {
			return nil, err
		}
	}
	if n.insecure && n.administration == "" {
		host, _, _ := strings.Cut(n.host, ":")
		n.administration = "http://" + net.JoinHostPort(host, "5300")
	}
	if u, err := url.Parse(n.administration); err != nil || n.administration != "" && (u.Host == "" || u.User != nil) {
		return nil, errAdministration
	}
	n.address = cmp.Or(t.Address, withPort(n.host, n.insecure))
	return n, nil
}

// parse reads the connection string. Errors repeat no part of it, which may be a misplaced key.
func (n *namespace) parse() error {
	var endpoint string
	var key, signature bool
	for part := range strings.SplitSeq(n.connectionString, ";") {
		name, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok && name != "" {
			return errConnectionString
		}
		switch strings.ToLower(name) {
		case "endpoint":
			endpoint = value
		case "entitypath":
			n.entity = value
		case "sharedaccesskey":
			key = value != ""
		case "sharedaccesssignature":
			signature = value != ""
		case "usedevelopmentemulator":
			insecure, err := strconv.ParseBool(value)
			if err != nil {
				return errConnectionString
			}
			n.insecure = insecure
		}
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "sb" || u.Host == "" || u.User != nil || !key && !signature {
		return errConnectionString
	}
	n.host = u.Host
	return nil
}

func withPort(host string, insecure bool) string {
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host
	}
	if insecure {
		return net.JoinHostPort(host, "5672")
	}
	return net.JoinHostPort(host, "5671")
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
	return nil, fmt.Errorf("asb: connect to %s: %w", n.address, err)
}

func (n *namespace) socket(ctx context.Context) (net.Conn, error) {
	if n.webSocket != nil {
		return n.webSocket(ctx, "wss://"+n.host+"/$servicebus/websocket")
	}
	d := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: keepAlive, Interval: keepAlive / 2, Count: 3}}
	c, err := d.DialContext(ctx, "tcp", n.address)
	if err != nil || n.insecure {
		return c, err
	}
	config := n.tls.Clone()
	if config == nil {
		config = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if config.ServerName == "" {
		config.ServerName, _, _ = strings.Cut(n.host, ":")
	}
	secure := tls.Client(c, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = c.Close() // the handshake's error says more
		return nil, err
	}
	return secure, nil
}

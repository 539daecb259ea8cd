package rabbitmq

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/callback"
)

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

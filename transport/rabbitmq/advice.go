package rabbitmq

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// advised is why the node could not be connected to, with what the user can do about it where the error
// does not say.
func (n *node) advised(err error) error {
	if text := n.advice(err); text != "" {
		return fmt.Errorf("%w: %s", plain(err), text)
	}
	return plain(err)
}

func (n *node) advice(err error) string {
	var (
		authority x509.UnknownAuthorityError
		name      x509.HostnameError
		record    tls.RecordHeaderError
		network   *net.OpError
		protocol  *amqp.Error
	)
	switch {
	case errors.As(err, &authority):
		return "trust who signed it, by Transport.TLS.RootCAs or cacertfile in the URL"
	case errors.As(err, &name):
		return "use a name that it has, in the URL or as Transport.TLS.ServerName"
	case errors.As(err, &record):
		return "TLS is not spoken at this port: often it is at 5671, and amqp:// goes without"
	case errors.As(err, &network) && network.Op == "remote error":
		return "the server may ask for a certificate of ours (Transport.TLS.Certificates, or certfile and keyfile in the URL), or trust others"
	case !strings.HasPrefix(n.url, "amqp:"):
		return ""
	case errors.Is(err, io.EOF), errors.As(err, &protocol) && !protocol.Server && protocol != amqp.ErrCredentials:
		return "AMQP 0-9-1 is not spoken at this port, or only with TLS, which is amqps://"
	}
	return ""
}

package rabbitmq

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/transport"
)

// brokerError is an error of the client library with a readable text. The library's error can still
// be matched.
type brokerError struct {
	doing string
	cause error
}

func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return &brokerError{doing: fmt.Sprintf(format, args...), cause: err}
}

func (e *brokerError) Error() string {
	return "rabbitmq: " + e.doing + ": " + plain(e.cause).Error()
}

func (e *brokerError) Unwrap() []error { return []error{e.cause, plain(e.cause)} }

// isCode reports whether the broker closed a channel or a connection with the given reply code.
func isCode(err error, code int) bool {
	var e *amqp.Error
	return errors.As(err, &e) && e.Code == code
}

// lossOf returns why a connection or a channel was lost.
func lossOf(e *amqp.Error, what string) error {
	if e == nil {
		return fmt.Errorf("the %s was closed", what)
	}
	return plain(e)
}

// plain returns a readable error for one of the client library, with advice where there is some.
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
		said := inequivalent.FindStringSubmatch(e.Reason)
		return fmt.Errorf("it exists with another %s: %s in the place of %s", said[1], valueText(said[3]), valueText(said[2]))
	case e.Code == amqp.PreconditionFailed && strings.Contains(e.Reason, "acknowledgement on channel"):
		return fmt.Errorf("the broker requeued the messages of the channel, as one was unsettled for longer than its "+
			"consumer_timeout: %d %s", e.Code, e.Reason)
	case e.Server:
		return fmt.Errorf("the broker says %d %s", e.Code, userText.ReplaceAllString(e.Reason, ""))
	default:
		return errors.New(e.Reason)
	}
}

// userText matches the user's name in the broker's refusals. Logs and errors do not show it.
var userText = regexp.MustCompile(` for user '[^']*'`)

// inequivalent matches the broker's refusal of a declaration that differs from the queue or
// exchange of that name.
var inequivalent = regexp.MustCompile(`inequivalent arg '([^']*)' for .*: received (.*) but current is (.*)$`)

// valueText shortens "the value '20' of type 'long'" to the value.
func valueText(s string) string {
	s, _, _ = strings.Cut(strings.TrimPrefix(s, "the value "), " of type ")
	return s
}

// advised returns why the node could not be connected to, with advice where there is some.
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
	case errors.Is(err, amqp.ErrSASL):
		return "the broker does not offer the SASL mechanism of the credentials: for a client's certificate, enable its " +
			"plugin rabbitmq_auth_mechanism_ssl and add EXTERNAL to its auth_mechanisms"
	case errors.As(err, &authority):
		return "trust the authority that signed it, by Transport.TLS.RootCAs or cacertfile in the URL"
	case errors.As(err, &name):
		return "use a name that it has, in the URL or as Transport.TLS.ServerName"
	case errors.As(err, &record):
		return "TLS is not spoken at this port: often it is at 5671, and amqp:// goes without"
	case errors.As(err, &network) && network.Op == "remote error":
		return "the server may ask for a client's certificate (Transport.TLS.Certificates, or certfile and keyfile in " +
			"the URL), or trust other authorities"
	case n.uri.Scheme != "amqp":
		return ""
	case errors.Is(err, io.EOF), errors.As(err, &protocol) && !protocol.Server && protocol != amqp.ErrCredentials:
		return "AMQP 0-9-1 is not spoken at this port, or only with TLS, which is amqps://"
	}
	return ""
}

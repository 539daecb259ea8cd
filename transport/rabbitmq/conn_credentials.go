package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/callback"
)

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

// dial opens a connection, whose token is replaced before it expires.
func (c *conn) dial(ctx context.Context, purpose string) (*brokerConn, error) {
	b, err := c.dialer.dial(ctx, purpose)
	if err != nil {
		return nil, err
	}
	if !b.login.expires.IsZero() {
		c.tasks.Go(func() { c.renewTokens(b, purpose) })
	}
	return b, nil
}

// renewTokens gives an open connection a new token before each expires. The broker closes a
// connection whose token has expired, which is then dialed again.
func (c *conn) renewTokens(b *brokerConn, purpose string) {
	closed := b.NotifyClose(make(chan *amqp.Error, 1))
	login, failed := b.login, false
	for !login.expires.IsZero() {
		select {
		case <-time.After(max(minTokenPause, time.Until(login.expires)/4*3)):
		case <-closed: //nolint:errcheck // the supervisor logs it
			return
		case <-c.ctx.Done():
			return
		}
		next, err := c.replaceToken(b, login)
		if err != nil && !failed && !b.IsClosed() {
			c.log.WarnContext(c.ctx, "no new token for an open connection: the driver asks again until the token expires",
				"connection", purpose, "expires", login.expires, "err", err)
		}
		login, failed = next, err != nil
	}
}

// replaceToken returns the credentials that the connection has afterwards.
func (c *conn) replaceToken(b *brokerConn, has Credentials) (Credentials, error) {
	next, err := c.dialer.ask(c.ctx)
	if err != nil {
		return has, err
	}
	if next.secret == has.secret {
		return next, nil
	}
	if err := b.UpdateSecret(next.secret, "the token expires"); err != nil {
		return has, wrap(err, "replace the token of a connection")
	}
	return next, nil
}

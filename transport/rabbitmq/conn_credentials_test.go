package rabbitmq_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

type credentials = func(context.Context) (rabbitmq.Credentials, error)

// withoutUser returns a URL without its user.
func withoutUser(t *testing.T, broker string) *url.URL {
	t.Helper()
	u, err := url.Parse(broker)
	must(t, err)
	u.User = nil
	return u
}

// openAs opens a transport with credentials, and returns its logs.
func openAs(t *testing.T, broker string, ask credentials) (transport.Conn, *lockedBuffer) {
	t.Helper()
	var logs lockedBuffer
	tr := &rabbitmq.Transport{URL: withoutUser(t, broker).String(), Credentials: ask}
	env := transport.Env{Endpoint: "test", Logger: slog.New(slog.NewTextHandler(&logs, nil))}
	c, err := tr.Open(within(t), env)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { must(t, c.Close()) })
	return c, &logs
}

func TestAPasswordMayChangeWhileRunning(t *testing.T) {
	t.Parallel()
	node := rabbitmq.OwnNode(t)
	vhost := strings.TrimPrefix(withoutUser(t, node.URL).Path, "/")
	node.AddUser("changing", "first-hunter2", ".*", ".*", ".*")
	var password atomic.Value
	password.Store("first-hunter2")
	c, logs := openAs(t, node.URL, func(context.Context) (rabbitmq.Credentials, error) {
		return rabbitmq.Password("changing", password.Load().(string)), nil
	})
	queue := install(t, c, "orders")
	r := receive(t, c, queue, 1)
	pass := func(id string) {
		t.Helper()
		ctx := within(t)
		for dispatch(c, send1(queue, message(id, "x"))) != nil && ctx.Err() == nil { // waits a second for the connection
		}
		for ctx.Err() == nil {
			_, _ = c.(transport.Inspector).Inspect(ctx, queue) // waits a second for the other one
			ds, err := r.Receive(ctx, 1)
			if err == nil && ds[0].Complete(ctx) == nil && ds[0].Message().ID == id {
				return
			}
		}
		t.Fatalf("%s nothing is received", id)
	}
	pass("with the first password")
	node.Control("change_password", "changing", "second-hunter2")
	node.Control("close_all_connections", "-p", vhost, "the password has changed")
	refused := func() bool {
		return strings.Contains(fmt.Sprint(dispatch(c, send1("absent", message("m", "x")))), "password refused")
	}
	for ctx := within(t); !refused(); {
		if ctx.Err() != nil {
			t.Fatalf("the refusal is not reported; the log says\n%s", logs)
		}
	}
	password.Store("second-hunter2")
	pass("with the second password")
	if strings.Contains(logs.String(), "hunter2") {
		t.Errorf("the log shows a password:\n%s", logs)
	}
}

// signer makes tokens that a node accepts.
type signer struct {
	key   []byte
	vhost string
}

// oauth has a node accept tokens for its virtual host.
func oauth(t *testing.T, node brokertest.RabbitMQNode) signer {
	t.Helper()
	s := signer{[]byte("a key of the test, of 32 bytes.."), strings.TrimPrefix(withoutUser(t, node.URL).Path, "/")}
	key := base64.RawURLEncoding.EncodeToString(s.key)
	node.Eval(fmt.Sprintf(`application:set_env(rabbitmq_auth_backend_oauth2, resource_server_id, <<"rabbitmq">>), `+
		`application:set_env(rabbitmq_auth_backend_oauth2, key_config, [{default_key, <<"test">>}, {signing_keys, #{<<"test">> => `+
		`{map, #{<<"kty">> => <<"oct">>, <<"alg">> => <<"HS256">>, <<"k">> => <<"%s">>}}}}]), `+
		`application:set_env(rabbit, auth_backends, [rabbit_auth_backend_internal, rabbit_auth_backend_oauth2]).`, key))
	t.Cleanup(func() {
		node.Eval(`application:set_env(rabbit, auth_backends, [rabbit_auth_backend_internal]).`)
	})
	return s
}

// token returns a token that RabbitMQ accepts until expires.
func (s signer) token(t *testing.T, expires time.Time) string {
	t.Helper()
	part := func(v any) string {
		b, err := json.Marshal(v)
		must(t, err)
		return base64.RawURLEncoding.EncodeToString(b)
	}
	signed := part(map[string]string{"alg": "HS256", "typ": "JWT", "kid": "test"}) + "." + part(map[string]any{
		"sub": "endpoint", "aud": []string{"rabbitmq"}, "exp": expires.Unix(),
		"scope": []string{
			"rabbitmq.configure:" + s.vhost + "/*", "rabbitmq.write:" + s.vhost + "/*", "rabbitmq.read:" + s.vhost + "/*",
		},
	})
	mac := hmac.New(sha256.New, s.key)
	mac.Write([]byte(signed))
	return signed + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

func TestATokenIsReplacedBeforeItExpires(t *testing.T) {
	t.Parallel()
	node := rabbitmq.WholeNode(t)
	s := oauth(t, node)
	brokertest.Longer(t, 5*time.Second, func(life time.Duration) error { return replacesTokens(t, node, s, life) })
}

func TestChaosATokenOfAMinuteIsReplaced(t *testing.T) {
	if !brokertest.Fault(t) {
		t.Skip("make test-faults SIZE=full runs it: two tokens of a minute; make test has the same with shorter ones")
	}
	node := rabbitmq.WholeNode(t)
	must(t, replacesTokens(t, node, oauth(t, node), time.Minute))
}

// replacesTokens works over connections with tokens that are valid for life, until two of them have
// expired. It returns what a busy machine may cause too, by using up a short life before the token
// is replaced.
func replacesTokens(t *testing.T, node brokertest.RabbitMQNode, s signer, life time.Duration) error {
	t.Helper()
	proxy := newProxy(t, node.URL)
	var asked atomic.Int32
	c, logs := openAs(t, proxy.URL(t, node.URL), func(context.Context) (rabbitmq.Credentials, error) {
		n := asked.Add(1)
		if n == 4 { // a failure is made up for before the token expires
			return rabbitmq.Credentials{}, errors.New("no token at the moment")
		}
		expires := time.Now().Add(life).Truncate(time.Second)
		return rabbitmq.Token(s.token(t, expires), expires), nil
	})
	queue := install(t, c, "orders")
	r := receive(t, c, queue, 1)
	for begin := time.Now(); time.Since(begin) < 2*life+life/2; {
		if err := dispatch(c, send1(queue, message("m", "x"))); err != nil {
			return err
		}
		if err := next(t, r).Complete(t.Context()); err != nil {
			return err
		}
	}
	if n := proxy.Connections(); n != 2 {
		return fmt.Errorf("%d connections were dialed, want 2 that stay open", n)
	}
	if text := logs.String(); strings.Count(text, "no new token") != 1 || strings.Contains(text, "eyJ") {
		return fmt.Errorf("asked %d times; the log says\n%s", asked.Load(), text)
	}
	return nil
}

func TestTheClientCertificateIdentifiesTheUser(t *testing.T) {
	t.Parallel()
	node := rabbitmq.WholeNode(t)
	listener := node.ListenTLS()
	node.Eval(`application:set_env(rabbit, ssl_cert_login_from, common_name), ` +
		`application:set_env(rabbit, ssl_options, [{verify, verify_peer}, {fail_if_no_peer_cert, true}]), ` +
		`application:set_env(rabbit, auth_mechanisms, ['PLAIN', 'AMQPLAIN', 'EXTERNAL']).`)
	t.Cleanup(func() {
		node.Eval(`application:set_env(rabbit, auth_mechanisms, ['PLAIN', 'AMQPLAIN']), ` +
			`application:set_env(rabbit, ssl_options, []).`)
	})
	u := withoutUser(t, listener.URL)
	node.AddUser("client", "unused", ".*", ".*", ".*")
	u.RawQuery = url.Values{
		"cacertfile": {listener.CA}, "certfile": {listener.ClientCert}, "keyfile": {listener.Key},
	}.Encode()
	c, _ := openAs(t, u.String(), func(context.Context) (rabbitmq.Credentials, error) { return rabbitmq.External(), nil })
	queue := install(t, c, "orders")
	must(t, dispatch(c, send1(queue, message("m", "x"))))
	must(t, next(t, receive(t, c, queue, 1)).Complete(t.Context()))
}

func TestCredentialsThatCannotBeUsedAreRefused(t *testing.T) {
	t.Parallel()
	ask := func(c rabbitmq.Credentials, err error) credentials {
		return func(context.Context) (rabbitmq.Credentials, error) { return c, err }
	}
	for _, tt := range []struct {
		url  string
		ask  credentials
		want string
	}{
		{"amqp://u:hunter2@127.0.0.1:1", ask(rabbitmq.Password("u", "hunter2"), nil), "leave one of them out"},
		{"amqp://127.0.0.1:1", ask(rabbitmq.Credentials{}, nil), "returned none"},
		{"amqp://127.0.0.1:1", ask(rabbitmq.Credentials{}, errors.New("the vault is sealed")), "the vault is sealed"},
		{"amqp://127.0.0.1:1", func(context.Context) (rabbitmq.Credentials, error) { panic("no vault") }, "panic: no vault"},
		{"amqp://127.0.0.1:1", func(context.Context) (rabbitmq.Credentials, error) {
			runtime.Goexit()
			return rabbitmq.Credentials{}, nil
		}, "runtime.Goexit"},
		{brokertest.RabbitMQ(t), ask(rabbitmq.Password("guest", "hunter2"), nil), "leave one of them out"},
		{withoutUser(t, brokertest.RabbitMQ(t)).String(), ask(rabbitmq.Password("guest", "hunter2"), nil), "password refused"},
		{withoutUser(t, brokertest.RabbitMQ(t)).String(), ask(rabbitmq.External(), nil), "rabbitmq_auth_mechanism_ssl"},
	} {
		_, err := (&rabbitmq.Transport{URL: tt.url, Credentials: tt.ask}).Open(within(t), transport.Env{})
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("error %v, want one with %q and without the password", err, tt.want)
		}
	}
}

func TestFormattedCredentialsShowNoSecret(t *testing.T) {
	for _, c := range []rabbitmq.Credentials{rabbitmq.Password("u", "hunter2"), rabbitmq.Token("hunter2", time.Now())} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			if text := fmt.Sprintf(verb, c); strings.Contains(text, "hunter2") || !strings.Contains(text, "PLAIN") {
				t.Errorf("%s: %s", verb, text)
			}
		}
		var logs lockedBuffer
		slog.New(slog.NewJSONHandler(&logs, nil)).Info("asked", "credentials", c)
		if strings.Contains(logs.String(), "hunter2") {
			t.Errorf("the log has %s", logs.String())
		}
	}
}

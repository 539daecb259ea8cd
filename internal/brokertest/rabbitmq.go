package brokertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	rabbitVariable = "HOLDFAST_TEST_AMQP"
	// controlVariable names the rabbitmqctl of that server, if it is not the one on the PATH.
	controlVariable = "HOLDFAST_TEST_RABBITMQCTL"
	// programsVariable names the folder with the programs of nodes of a test binary's own.
	programsVariable = "HOLDFAST_TEST_RABBITMQ_BIN"
	rabbitDefault    = "amqp://guest:guest@127.0.0.1:5672/"
)

// RabbitMQ returns the URL of a virtual host that is deleted after the test, on the server of
// HOLDFAST_TEST_AMQP, or on this machine's. Where another machine has no right for that, it is
// the virtual host of the URL: then queues need a [Name], and are deleted by it. On this machine
// the test fails instead: a busy one may only have been too slow, and a test that shares a
// virtual host with others finds what they leave there.
func RabbitMQ(t testing.TB) string {
	t.Helper()
	u, err := url.Parse(cmp.Or(os.Getenv(rabbitVariable), rabbitDefault))
	if err != nil {
		t.Fatalf("%s is not a URL", rabbitVariable) // its text may hold a password
	}
	if u.Port() == "" {
		u.Host = net.JoinHostPort(u.Hostname(), "5672")
	}
	need(t, "RabbitMQ", u.Host, rabbitVariable)
	vhost, err := createVhost(t, u)
	if err != nil && onThisMachine(u) {
		t.Logf("create a virtual host on %s: %v; it is tried once more", u.Host, err)
		if vhost, err = createVhost(t, u); err != nil {
			t.Fatalf("create a virtual host on %s: %v", u.Host, err)
		}
	}
	if err == nil {
		return vhost
	}
	t.Logf("no right to create virtual hosts on %s: queues are told apart by name: %v", u.Host, err)
	whole := u.String()
	shared.Store(&whole)
	return whole
}

// shared is the server that tests share if they cannot have virtual hosts.
var shared atomic.Pointer[string]

// createVhost creates a virtual host by rabbitmqctl or by the HTTP API.
func createVhost(t testing.TB, server *url.URL) (string, error) {
	t.Helper()
	name := unique()
	own := *server
	own.Path = "/" + name
	var all []error
	for _, way := range []vhosts{control{server, localRabbitmqctl}, management{server}} {
		if err := way.create(name); err != nil {
			all = append(all, err)
			continue
		}
		c, err := amqp.Dial(own.String())
		if err != nil {
			all = append(all, fmt.Errorf("connect to it: %w", err))
			_ = way.remove(name) // it was created on another server
			continue
		}
		_ = c.Close()
		t.Cleanup(func() {
			if err := way.remove(name); err != nil {
				t.Errorf("delete virtual host %s: %v", name, err)
			}
		})
		return own.String(), nil
	}
	return "", errors.Join(all...)
}

func onThisMachine(server *url.URL) bool {
	return server.Hostname() == "localhost" || net.ParseIP(server.Hostname()).IsLoopback()
}

type vhosts interface {
	create(name string) error
	remove(name string) error
}

// control runs rabbitmqctl, which has rights over the server on this machine.
type control struct {
	server *url.URL
	run    func(args ...string) error
}

func (c control) create(name string) error {
	if !onThisMachine(c.server) {
		return fmt.Errorf("%s is not this machine", c.server.Hostname())
	}
	// One call instead of three: each takes half a second. It also deletes the virtual hosts of
	// killed tests.
	return c.run("eval", fmt.Sprintf(`[catch rabbit_vhost:delete(V, <<"test">>) || V <- rabbit_vhost:list_names(), `+
		`{match, [T]} <- [re:run(V, "%[3]s", [{capture, [1], list}])], list_to_integer(T) < %[4]d], `+
		`ok = rabbit_vhost:add(<<"%[1]s">>, <<"test">>), `+
		`rabbit_auth_backend_internal:set_permissions(<<"%[2]s">>, <<"%[1]s">>, <<".*">>, <<".*">>, <<".*">>, <<"test">>).`,
		name, c.server.User.Username(), uniquePattern, time.Now().Add(-leftAfter).Unix()))
}

// remove evaluates an expression, which a broker of scripts/brokers.sh does ten times as fast as a
// command.
func (c control) remove(name string) error {
	return c.run("eval", fmt.Sprintf(`[] = [E || {error, E} <- [rabbit_vhost:delete(<<"%s">>, <<"test">>)]].`, name))
}

func localRabbitmqctl(args ...string) error {
	return rabbitmqctl(cmp.Or(os.Getenv(controlVariable), "rabbitmqctl"), nil, args...)
}

// management calls the HTTP API of the management plugin on its usual port.
type management struct{ server *url.URL }

func (m management) create(name string) error {
	if err := m.do(http.MethodPut, "/api/vhosts/"+name, "{}"); err != nil {
		return err
	}
	user := url.PathEscape(m.server.User.Username())
	return m.do(http.MethodPut, "/api/permissions/"+name+"/"+user, `{"configure":".*","write":".*","read":".*"}`)
}

func (m management) remove(name string) error {
	return m.do(http.MethodDelete, "/api/vhosts/"+name, "")
}

func (m management) do(method, path, body string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	address := "http://" + net.JoinHostPort(m.server.Hostname(), "15672") + path
	req, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(body))
	if err != nil {
		return err
	}
	password, _ := m.server.User.Password()
	req.SetBasicAuth(m.server.User.Username(), password)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if resp.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("%s %s: %s", method, path, resp.Status)
	}
	return nil
}

// deleteNamed deletes the queue and the exchanges that may have a name.
func deleteNamed(t testing.TB, server, name string) {
	t.Helper()
	c, err := amqp.Dial(server)
	if err != nil {
		t.Errorf("delete %s: cannot connect", name)
		return
	}
	defer c.Close() //nolint:errcheck // the end of a test's clean-up
	ch, err := c.Channel()
	if err == nil {
		_, err = ch.QueueDelete(name, false, false, false)
	}
	for _, exchange := range []string{name, typeExchange(name)} {
		if err == nil {
			err = ch.ExchangeDelete(exchange, false, false)
		}
	}
	if err != nil {
		t.Errorf("delete %s: %v", name, err)
	}
}

// typeExchange returns the exchange of a message type that is neither nested nor generic.
func typeExchange(name string) string {
	dot := strings.LastIndexByte(name, '.')
	return name[:max(0, dot)] + ":" + name[dot+1:]
}

package rabbitmq

import (
	"fmt"
	"net"
	"net/url"
	"strconv"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

func TestMain(m *testing.M) {
	brokertest.Parallel("12")
	m.Run()
}

// OwnNode returns the RabbitMQ of these tests' own, with a virtual host of the test. Other tests
// use the node meanwhile.
func OwnNode(t testing.TB) brokertest.RabbitMQNode {
	t.Helper()
	node := brokertest.SharedRabbitMQ(t)
	enablePlugins(t, node)
	return node
}

// WholeNode returns the same node. No other test uses the node until this test is over.
func WholeNode(t testing.TB) brokertest.RabbitMQNode {
	t.Helper()
	node := brokertest.OwnRabbitMQ(t)
	enablePlugins(t, node)
	return node
}

var plugins struct {
	once sync.Once
	api  string // the URL of the management API
}

// enablePlugins enables the plugins of all tests, once: a change of the plugins takes seconds.
func enablePlugins(t testing.TB, node brokertest.RabbitMQNode) {
	t.Helper()
	plugins.once.Do(func() {
		port := freePort(t)
		node.Eval(fmt.Sprintf(`ok = rabbit:await_startup(60000), `+
			`application:set_env(rabbitmq_management, tcp_config, [{port, %s}, {ip, "127.0.0.1"}]), `+
			`{ok, File} = application:get_env(rabbit, enabled_plugins_file), `+
			`ok = file:write_file(File, "[rabbitmq_management,rabbitmq_auth_mechanism_ssl,rabbitmq_auth_backend_oauth2]."), `+
			`{ok, _, _} = rabbit_plugins:ensure(File).`, port))
		plugins.api = (&url.URL{Scheme: "http", Host: net.JoinHostPort("127.0.0.1", port)}).String()
	})
	if plugins.api == "" {
		t.Fatal("the plugins of the node were not enabled, as an earlier test says")
	}
}

func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// ManagementAPI returns the URL of the node's management API, after a call of OwnNode or WholeNode.
func ManagementAPI() string { return plugins.api }

package rabbitmq_test

import (
	"net/url"
	"testing"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

// newProxy stands before the broker of a URL.
func newProxy(t *testing.T, broker string) *brokertest.Proxy {
	t.Helper()
	u, err := url.Parse(broker)
	if err != nil {
		t.Fatal(err)
	}
	return brokertest.NewProxy(t, u.Host)
}

// A declaration whose connection ends before the broker has the request is repeated on the next
// connection.
func TestAnInstallationOutlastsALostConnection(t *testing.T) {
	t.Parallel()
	url := brokertest.RabbitMQ(t)
	proxy := newProxy(t, url)
	c := open(t, proxy.URL(t, url), nil)
	const channelOpen = "\x00\x14\x00\x0a" // class 20, method 10 (AMQP 0-9-1)
	proxy.CutAt(channelOpen, 1)
	before := proxy.Connections()
	queue := install(t, c, "orders")
	if proxy.Connections() == before {
		t.Fatal("no connection was cut")
	}
	must(t, dispatch(c, send1(queue, message("a", "x"))))
}

// A declaration whose connection ends before the answer is repeated, whether or not the broker has
// carried it out.
func TestADeclarationOutlastsALostAnswer(t *testing.T) {
	t.Parallel()
	url := brokertest.RabbitMQ(t)
	proxy := newProxy(t, url)
	c := open(t, proxy.URL(t, url), nil)
	const queueDeclare = "\x00\x32\x00\x0a" // class 50, method 10 (AMQP 0-9-1)
	proxy.CutAtAnswer(queueDeclare, 2)
	before := proxy.Connections()
	queue := install(t, c, "orders")
	if n := proxy.Connections() - before; n < 2 {
		t.Fatalf("%d connections were cut", n)
	}
	must(t, dispatch(c, send1(queue, message("a", "x"))))
}

package rabbitmq_test

import (
	"net"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

// Two ways to the one broker stand for two nodes of a cluster.
func TestAnotherNodeTakesOverWhenOneIsLost(t *testing.T) {
	t.Parallel()
	broker := brokertest.RabbitMQ(t)
	first, second := newProxy(t, broker), newProxy(t, broker)
	c := open(t, first.URL(t, broker), func(tr *rabbitmq.Transport) { tr.Hosts = []string{second.Addr()} })
	queue := install(t, c, "orders")
	r := receive(t, c, queue, 10)
	if second.Connections() != 0 {
		t.Error("the second node was connected to while the first was there")
	}
	for _, lost := range []*brokertest.Proxy{first, second} {
		lost.Refuse()
		must(t, dispatchOver(t, c, send1(queue, message("m", "x"))))
		must(t, next(t, r).Complete(t.Context()))
		lost.Resume()
	}
}

// dispatchOver sends until the connection is there again.
func dispatchOver(t testing.TB, c transport.Conn, op transport.Operation) error {
	t.Helper()
	ctx := within(t)
	for {
		_, err := c.Dispatch(ctx, []transport.Operation{op})
		if err == nil || ctx.Err() != nil {
			return err
		}
	}
}

func TestWhenNoNodeAnswersTheErrorNamesAll(t *testing.T) {
	gone := make([]string, 2)
	for i := range gone {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		gone[i] = l.Addr().String()
		must(t, l.Close())
	}
	tr := &rabbitmq.Transport{URL: "amqp://guest:s3cret@" + gone[0], Hosts: gone[1:]}
	_, err := tr.Open(t.Context(), transport.Env{})
	if err == nil || !strings.Contains(err.Error(), gone[0]) || !strings.Contains(err.Error(), gone[1]) || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("error: %v", err)
	}
}

func TestHostsAreNoURLs(t *testing.T) {
	for _, host := range []string{"", "amqp://other", "guest:s3cret@other", "other/vhost"} {
		_, err := (&rabbitmq.Transport{URL: "amqp://guest:guest@127.0.0.1:1", Hosts: []string{host}}).Open(t.Context(), transport.Env{})
		if err == nil || !strings.Contains(err.Error(), "Transport.Hosts") || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("host %q: %v", host, err)
		}
	}
}

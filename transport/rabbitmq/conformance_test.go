package rabbitmq_test

import (
	"math"
	"net/url"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
	"github.com/holdfast-go/holdfast/transport/transporttest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	for _, kind := range []rabbitmq.QueueType{rabbitmq.Quorum, rabbitmq.Classic} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			transporttest.Run(t, conformance(t, kind, rabbitmq.Conventional))
		})
	}
}

// Topologies differ only in what the rules of these themes touch; soak has them all.
func TestConformanceOfTheDirectTopology(t *testing.T) {
	t.Parallel()
	h := conformance(t, rabbitmq.Quorum, rabbitmq.Direct)
	if soak() {
		transporttest.Run(t, h)
		return
	}
	transporttest.Run(t, h, "Messages", "Delays", "Publishing", "Installing and inspecting", "Browsing and purging")
}

// conformance is the harness on a virtual host, which the rules share.
func conformance(t *testing.T, kind rabbitmq.QueueType, topology rabbitmq.Topology) transporttest.Harness {
	t.Helper()
	broker := brokertest.RabbitMQ(t)
	return transporttest.Harness{
		Open: func(testing.TB) transport.Transport {
			return &rabbitmq.Transport{URL: broker, QueueType: kind, Topology: topology}
		},
		Name: brokertest.Name,
		Translate: func(_ testing.TB, f func(*transport.Message)) transport.Transport {
			return &rabbitmq.Transport{URL: broker, QueueType: kind, Topology: topology, Translate: f}
		},
		PutUndecodable: func(t testing.TB, _ transport.Transport, queue string) {
			t.Helper()
			putUndecodable(t, broker, queue)
		},
		Break: func(t testing.TB) (transport.Transport, transporttest.Link) {
			u, err := url.Parse(broker)
			if err != nil {
				t.Fatal(err)
			}
			proxy := brokertest.NewProxy(t, u.Host)
			heartbeat := 5 * time.Second // a busy machine may be silent for longer than two short ones
			if strings.HasSuffix(t.Name(), "/fault-half-open-receive") {
				heartbeat = time.Second // the rule waits until the silence is noticed
			}
			return &rabbitmq.Transport{URL: proxy.URL(t, broker), QueueType: kind, Topology: topology, Heartbeat: heartbeat}, proxy
		},
		Restart: func(t testing.TB) (transport.Transport, func()) {
			node := rabbitmq.WholeNode(t)
			return &rabbitmq.Transport{URL: node.URL, QueueType: kind, Topology: topology}, func() {
				node.RestartApp()
			}
		},
	}
}

// putUndecodable publishes a message with a header that has no text: a time in a year of five
// digits.
func putUndecodable(t testing.TB, broker, queue string) {
	t.Helper()
	conn, err := amqp.Dial(broker)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err == nil {
		err = ch.Confirm(false)
	}
	if err != nil {
		t.Fatal(err)
	}
	m := amqp.Publishing{MessageId: "foreign", Headers: amqp.Table{"when": time.Unix(math.MaxInt32*1000, 0)}}
	confirm, err := ch.PublishWithDeferredConfirm("", queue, true, false, m)
	if err != nil {
		t.Fatal(err)
	}
	if !confirm.Wait() {
		t.Error("the message was not accepted")
	}
}

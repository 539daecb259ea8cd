package rabbitmq

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// QueueType is the kind of queue that [Transport] creates.
type QueueType string

const (
	// Quorum queues are replicated and count hand-outs exactly: the default.
	Quorum QueueType = "quorum"
	// Classic queues are kept on one node and tell only that a message has been
	// handed out before.
	Classic QueueType = "classic"
)

// Topology is how publishers and subscribers find each other. The names of exchanges, and the routing
// keys, are those of NServiceBus's topologies of the same names; all endpoints of a system use the same.
type Topology string

const (
	// Conventional has a fanout exchange for each type, bound to those of its base types: the default.
	Conventional Topology = "conventional"
	// Direct has one topic exchange for all types.
	Direct Topology = "direct"
)

// Transport connects to a RabbitMQ server, 3.10 or newer, over AMQP 0-9-1. It holds
// configuration only, and must not change while it is open.
type Transport struct {
	// URL is amqp://user:password@host:port/vhost, or amqps:// for TLS. Special
	// characters in the parts are percent-encoded. Required. Neither errors nor logs
	// show its user and password.
	URL string
	// Management is the URL of the broker's management API, http://user:password@host:15672: [Verify] reads policies there, and [InspectDelays]
	// what delays hold. Its user needs the tag "monitoring", and is that of URL unless named. Neither errors nor logs show its
	// user and password. Optional.
	Management string
	// Hosts are further nodes of the cluster, "host" or "host:port": where one cannot be reached the next is tried.
	// All else is as in the URL. Optional.
	Hosts []string
	// ConnectionName is what the broker's tools show: the endpoint's name unless set.
	ConnectionName string
	// TLS configures amqps; nil uses the system's certificate authorities.
	TLS *tls.Config
	// QueueType is what Install creates; "" is Quorum. Queues that exist are used
	// as they are.
	QueueType QueueType
	// Topology is [Conventional] unless set.
	Topology Topology
	// TopicExchange is the exchange of [Direct]: "amq.topic" unless set.
	TopicExchange string
	// DeliveryLimit is how often the broker may take back a message of the endpoint's own quorum
	// queues: one more, and it goes to the queue "<endpoint>.dead-letters", from where a running
	// endpoint moves it to its error queue. That is a net under the endpoint's own counting, so it
	// has to be far above the immediate retries: a process that dies gives back all that it held, and
	// each of these counts. 0 is 100, and -1 declares the queues without limit and target, as
	// NServiceBus does; from RabbitMQ 4.0 the broker then drops what came back 20 times, unless
	// a policy says otherwise. A queue that exists is used as it is.
	DeliveryLimit int
	// ConsumerTimeout is how long a message may be held, at least a second; prefetched ones count. At 80 % the log
	// warns. Before RabbitMQ 4.3 it has to be what the broker's consumer_timeout is: a message that is not settled for so
	// long is taken back, with all others of its channel. From 4.3 it need not be, for the broker is asked for longer:
	// on quorum queues such a message is given back alone, which counts as an attempt, and on classic ones it
	// may be held for ever. 0 is the broker's default, 30 min.
	ConsumerTimeout time.Duration
	// Translate is called with each received message, before anything else sees it, and may change it:
	// give messages of other producers an ID that stays the same at each hand-out, a type by the header
	// NServiceBus.EnclosedMessageTypes, or another body. Native has the message's properties. One that it panics over is
	// moved to the error queue. It is called by several goroutines at once. Optional.
	Translate func(m *transport.Message)
	// Heartbeat is how often the two sides show each other that they live, in whole
	// seconds and at least one; a silent connection is given up after one and a half times that.
	// 0 is 10 s.
	Heartbeat time.Duration
}

// defaultConsumerTimeout is the server's.
const defaultConsumerTimeout = 30 * time.Minute

var _ transport.Transport = (*Transport)(nil)

// Open connects twice, for receiving and for sending. It fails within seconds when
// the server cannot be reached, refuses the user, or lacks the virtual host.
func (t *Transport) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	d, err := newDialer(t, env)
	if err != nil {
		return nil, err
	}
	queueType, err := t.queueType()
	if err != nil {
		return nil, err
	}
	backstop, err := t.backstop(env.Endpoint)
	if err != nil {
		return nil, err
	}
	topology, err := t.topology()
	if err != nil {
		return nil, err
	}
	management, err := newManagement(t)
	if err != nil {
		return nil, err
	}
	maxHold := cmp.Or(t.ConsumerTimeout, defaultConsumerTimeout)
	if maxHold < time.Second {
		return nil, fmt.Errorf("rabbitmq: ConsumerTimeout %v: it is at least a second, or 0 for %v", maxHold, defaultConsumerTimeout)
	}
	return openConn(ctx, &conn{
		dialer: d, queueType: queueType, topology: topology, backstop: backstop, maxHold: maxHold, translate: t.Translate, log: env.Log(),
		management: management,
	})
}

func (t *Transport) topology() (topology, error) {
	switch t.Topology {
	case "", Conventional:
		if t.TopicExchange != "" {
			return nil, fmt.Errorf("rabbitmq: TopicExchange %q is for the topology %q", t.TopicExchange, Direct)
		}
		return conventional{}, nil
	case Direct:
		return direct{cmp.Or(t.TopicExchange, defaultTopicExchange)}, nil
	default:
		return nil, fmt.Errorf("rabbitmq: topology %q: use %q or %q", t.Topology, Conventional, Direct)
	}
}

func (t *Transport) queueType() (QueueType, error) {
	switch t.QueueType {
	case "":
		return Quorum, nil
	case Quorum, Classic:
		return t.QueueType, nil
	default:
		return "", fmt.Errorf("rabbitmq: queue type %q: use %q or %q", t.QueueType, Quorum, Classic)
	}
}

package rabbitmq

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// QueueType is the type of the queues that [Transport] creates.
type QueueType string

const (
	// Quorum queues are replicated and count deliveries exactly: the default.
	Quorum QueueType = "quorum"
	// Classic queues are kept on one node and report only that a message has been delivered before.
	Classic QueueType = "classic"
)

// Topology is the way from publishers to subscribers. The names of exchanges, and the routing keys,
// are those of NServiceBus's topologies of the same names; all endpoints of a system use the same.
type Topology string

const (
	// Conventional has a fanout exchange for each type, bound to those of its base types: the
	// default.
	Conventional Topology = "conventional"
	// Direct has one topic exchange for all types.
	Direct Topology = "direct"
)

// None is no limit in a field whose zero is a default: [Transport].DeliveryLimit.
const None = -1

// Transport connects to a RabbitMQ server, 3.10 or newer, over AMQP 0-9-1. It holds configuration
// only, and must not change while it is open. [ParseURL] makes one from a URL.
type Transport struct {
	// URL is amqp://user:password@host:port/vhost, or amqps:// for TLS. Special characters in its
	// parts are percent-encoded. Required. Neither errors nor logs show its user and password.
	URL string
	// Credentials returns the user's credentials, in place of a user in the URL: for passwords and
	// tokens that change. It is called before each connection attempt, and again before a token
	// expires, by several goroutines at once. It must return within 10 s, and when ctx ends. Its
	// error is logged. Optional.
	Credentials func(ctx context.Context) (Credentials, error)
	// Management is the URL of the broker's management API, http://user:password@host:15672. Verify
	// reads policies from it, and [InspectDelays] the number of messages that are being
	// dead-lettered. Its user needs the tag "monitoring", and "policymaker" where Install creates
	// policies (DeliveryLimit). If the URL has no user, the user of the broker's connections is
	// used. Neither errors nor logs show its user and password. Optional.
	Management string
	// Hosts are further nodes of the cluster, "host" or "host:port". If a node cannot be reached,
	// the next one is tried. All other settings are those of the URL. Optional.
	Hosts []string
	// ConnectionName is the name that the broker's tools show. Default: the endpoint's name.
	ConnectionName string
	// TLS configures amqps. nil: the system's certificate authorities.
	TLS *tls.Config
	// QueueType is the type of the queues that Install creates. Default: Quorum. Existing queues
	// are used unchanged.
	QueueType QueueType
	// Topology selects the exchanges that route events. Default: [Conventional].
	Topology Topology
	// TopicExchange is the exchange of the [Direct] topology. Default: "amq.topic".
	TopicExchange string
	// DeliveryLimit is how often a message of the endpoint's own quorum queues may return to its
	// queue. When it returns once more, the broker moves it to the queue "<endpoint>.dead-letters",
	// from which a running endpoint moves it to its error queue. The endpoint counts attempts
	// itself, so the limit must be far above the number of immediate retries: when a process
	// crashes, all its prefetched messages return, and each return counts. 0: 100. Existing queues
	// are used unchanged.
	//
	// [None] declares the queues with the argument x-queue-type alone, as NServiceBus does, so that
	// an endpoint of NServiceBus may take them over. These queues are weaker: the broker moves no
	// message to a dead-letter queue, before RabbitMQ 4.0 a message may return for ever, and where
	// a policy limits the length of a queue, the broker drops its oldest messages in place of
	// refusing new ones. From 4.0 the broker drops a message after 20 returns, unless a policy
	// lifts that limit: where Management is set, Install creates the policy that NServiceBus
	// creates, "nsb.<queue>.delivery-limit" with a limit of 100,000, for each quorum queue that no
	// other policy applies to. Where that is not possible, it logs a warning with the command for
	// rabbitmqctl, and so does an endpoint that starts on such a queue.
	DeliveryLimit int
	// ConsumerTimeout is how long a message may be unsettled, including prefetched messages; at
	// least a second. At 80 % the driver logs a warning. Before RabbitMQ 4.3 it must equal the
	// broker's consumer_timeout, after which the broker requeues the message with all others of its
	// channel. From 4.3 it may differ, because the driver requests a longer timeout from the
	// broker: on quorum queues such a message is requeued alone, which counts as an attempt, and on
	// classic queues it may stay unsettled for ever. 0: the broker's default, 30 min.
	ConsumerTimeout time.Duration
	// Translate is called with each received message before the endpoint processes it, and may
	// change it. For messages of other producers it can set an ID that is the same at each
	// delivery, a type in the header NServiceBus.EnclosedMessageTypes, or another body. The
	// message's Native has the broker's properties. If Translate panics, the message is moved to
	// the error queue. If Translate hangs, its message keeps its slot. Several goroutines call it
	// at once. Optional.
	Translate func(m *transport.Message)
	// Heartbeat is the interval at which each side sends heartbeats, in whole seconds and at least
	// one. A silent connection is closed after one and a half intervals. 0: 10 s.
	Heartbeat time.Duration
}

// defaultConsumerTimeout is the server's.
const defaultConsumerTimeout = 30 * time.Minute

var _ transport.Transport = (*Transport)(nil)

// System returns "rabbitmq".
func (*Transport) System() string { return "rabbitmq" }

// Open connects twice, for receiving and for sending. It fails within seconds when the server
// cannot be reached, refuses the user, or lacks the virtual host.
func (t *Transport) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	d, err := newDialer(t, env)
	if err != nil {
		return nil, err
	}
	queueType, err1 := t.queueType()
	deadLetters, err2 := t.deadLetters(env.Endpoint)
	topology, err3 := t.topology()
	management, err4 := newManagement(t, d)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, err
	}
	maxHold := cmp.Or(t.ConsumerTimeout, defaultConsumerTimeout)
	if maxHold < time.Second {
		return nil, fmt.Errorf("rabbitmq: ConsumerTimeout %v: it is at least a second, or 0 for %v",
			maxHold, defaultConsumerTimeout)
	}
	return openConn(ctx, &core{
		schema: schema{
			channels:  channels{log: env.Log()},
			queueType: queueType, topology: topology, deadLetters: deadLetters, management: management,
			vhost: d.vhost(),
		},
		dialer: d, maxHold: maxHold, translate: t.Translate,
	})
}

func (t *Transport) topology() (topology, error) {
	switch t.Topology {
	case "", Conventional:
		if t.TopicExchange != "" {
			return nil, fmt.Errorf("rabbitmq: topic exchange %q: it is for the topology %q", t.TopicExchange, Direct)
		}
		return conventional{}, nil
	case Direct:
		return direct{cmp.Or(t.TopicExchange, defaultTopicExchange)}, nil
	default:
		return nil, fmt.Errorf("rabbitmq: topology %q: use %q or %q", t.Topology, Conventional, Direct)
	}
}

func (t *Transport) queueType() (QueueType, error) {
	queueType := cmp.Or(t.QueueType, Quorum)
	if queueType != Quorum && queueType != Classic {
		return "", fmt.Errorf("rabbitmq: queue type %q: use %q or %q", t.QueueType, Quorum, Classic)
	}
	return queueType, nil
}

// clientOptions are the options that stay in the URL, for the client library.
var clientOptions = []string{
	"cacertfile", "certfile", "keyfile", "server_name_indication", "channel_max", "auth_mechanism",
}

const ownOptions = "queue_type, topology, topic_exchange, delivery_limit, consumer_timeout, hosts, management"

// ParseURL returns the transport of a URL amqp://user:password@host:port/vhost, or amqps:// for
// TLS, with these options:
//
//   - queue_type, topology, topic_exchange, delivery_limit and management are the fields of those names; a delivery_limit
//     of none is [None],
//   - consumer_timeout is a duration such as 1h,
//   - hosts are further nodes, separated by commas,
//   - cacertfile, certfile and keyfile are PEM files for TLS, and server_name_indication is the server's name,
//   - auth_mechanism is plain, amqplain or external, and channel_max the most channels of a connection.
//
// Another option is an error that names it. Errors do not repeat the URL.
func ParseURL(rawURL string) (*Transport, error) {
	u, err := parseURL(rawURL)
	if err != nil {
		return nil, err
	}
	if u.Host == "" {
		return nil, errors.New("rabbitmq: no host in the URL: write amqp://user:password@host:port/vhost")
	}
	options, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, errURL
	}
	for _, name := range slices.Sorted(maps.Keys(options)) {
		if n := len(options[name]); n > 1 {
			return nil, fmt.Errorf("rabbitmq: option %q is set %d times", name, n)
		}
	}
	take := func(name string) string {
		defer options.Del(name)
		return options.Get(name)
	}
	t := &Transport{
		QueueType:     QueueType(take("queue_type")),
		Topology:      Topology(take("topology")),
		TopicExchange: take("topic_exchange"),
		Management:    take("management"),
	}
	if hosts := take("hosts"); hosts != "" {
		t.Hosts = strings.Split(hosts, ",")
	}
	err = errors.Join(t.setNumbers(take("delivery_limit"), take("consumer_timeout")), t.check())
	for _, name := range slices.Sorted(maps.Keys(options)) {
		if !slices.Contains(clientOptions, name) {
			err = errors.Join(err, fmt.Errorf("rabbitmq: unknown option %q: want %s or one of %q", name, ownOptions, clientOptions))
		}
	}
	if err != nil {
		return nil, err
	}
	u.RawQuery = options.Encode()
	t.URL = u.String()
	_, err = newNode(*u, u.Host)
	return t, err
}

// setNumbers sets the fields of options that are numbers.
func (t *Transport) setNumbers(deliveryLimit, consumerTimeout string) error {
	switch deliveryLimit {
	case "":
	case "none":
		t.DeliveryLimit = None
	default:
		n, err := strconv.ParseInt(deliveryLimit, 10, 32)
		if err != nil || n == 0 || n < None {
			return fmt.Errorf("rabbitmq: delivery_limit %q: want a number, or none", deliveryLimit)
		}
		t.DeliveryLimit = int(n)
	}
	if consumerTimeout != "" {
		d, err := time.ParseDuration(consumerTimeout)
		if err != nil || d < time.Second {
			return fmt.Errorf("rabbitmq: consumer_timeout %q: want a second or more, such as 1h", consumerTimeout)
		}
		t.ConsumerTimeout = d
	}
	return nil
}

// check refuses values of options that Open would refuse.
func (t *Transport) check() error {
	_, queueType := t.queueType()
	_, topology := t.topology()
	var management error
	if strings.Contains(t.Management, "@") {
		management = errors.New("rabbitmq: management: want no user in it: that of the URL is used")
	}
	return errors.Join(queueType, topology, management)
}

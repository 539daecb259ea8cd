package rabbitmq

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

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

package main

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/bench"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

// amqpOptions are those that the client library takes from a URL and the driver does not set.
var amqpOptions = []string{"cacertfile", "certfile", "keyfile", "server_name_indication", "channel_max"}

func rabbitTarget(raw string) (target, error) {
	u, err := parseURL(raw)
	if err != nil {
		return target{}, err
	}
	t := &rabbitmq.Transport{
		QueueType:      rabbitmq.QueueType(takeOption(u, "queue_type")),
		Topology:       rabbitmq.Topology(takeOption(u, "topology")),
		TopicExchange:  takeOption(u, "topic_exchange"),
		Management:     takeOption(u, "management"),
		ConnectionName: programName,
	}
	if t.DeliveryLimit, err = deliveryLimit(u); err != nil {
		return target{}, err
	}
	if err := checkRabbit(t); err != nil {
		return target{}, err
	}
	for name := range u.Query() {
		if !slices.Contains(amqpOptions, name) {
			return target{}, fmt.Errorf("unknown option %q: want queue_type, topology, topic_exchange, delivery_limit, management or one of %q", name, amqpOptions)
		}
	}
	t.URL = u.String()
	return target{
		Transport: t, broker: "RabbitMQ",
		bench: func(int) bench.Broker { return bench.RabbitMQ(t.URL) },
	}, nil
}

func deliveryLimit(u *url.URL) (int, error) {
	text := takeOption(u, "delivery_limit")
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n == 0 || n < -1 {
		return 0, fmt.Errorf("delivery_limit %q: want a number, or -1 for none", text)
	}
	return int(n), nil
}

func checkRabbit(t *rabbitmq.Transport) error {
	if strings.Contains(t.Management, "@") {
		return errors.New("management: want no user in it: that of the URL is used")
	}
	switch t.QueueType {
	case "", rabbitmq.Quorum, rabbitmq.Classic:
	default:
		return fmt.Errorf("queue_type %q: want quorum or classic", t.QueueType)
	}
	switch t.Topology {
	case "", rabbitmq.Conventional:
		if t.TopicExchange != "" {
			return fmt.Errorf("topic_exchange %q: want topology=direct with it", t.TopicExchange)
		}
	case rabbitmq.Direct:
	default:
		return fmt.Errorf("topology %q: want conventional or direct", t.Topology)
	}
	return nil
}

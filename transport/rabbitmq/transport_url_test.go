package rabbitmq_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

func TestAURLIsParsed(t *testing.T) {
	for url, want := range map[string]rabbitmq.Transport{
		"amqp://u:p@host:5672/v": {URL: "amqp://u:p@host:5672/v"},
		"amqps://host/%2f":       {URL: "amqps://host/%2f"},
		"amqp://h?queue_type=classic&topology=direct&topic_exchange=e&delivery_limit=-1": {
			URL: "amqp://h", QueueType: rabbitmq.Classic, Topology: rabbitmq.Direct, TopicExchange: "e", DeliveryLimit: rabbitmq.None,
		},
		"amqp://h?delivery_limit=none": {URL: "amqp://h", DeliveryLimit: rabbitmq.None},
		"amqp://h?hosts=b,c:5673&consumer_timeout=1h&management=http://h:15672&channel_max=5&auth_mechanism=external": {
			URL: "amqp://h?auth_mechanism=external&channel_max=5", Hosts: []string{"b", "c:5673"},
			ConsumerTimeout: time.Hour, Management: "http://h:15672",
		},
	} {
		got, err := rabbitmq.ParseURL(url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		if diff := cmp.Diff(&want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", url, diff)
		}
	}
}

func TestABadURLIsNamedWithoutItsPassword(t *testing.T) {
	for url, want := range map[string]string{
		"":                                           "empty",
		"amqp:localhost":                             "no host",
		"http://u:hunter2@h":                         "amqp://",
		"amqp://u:hunter2/x@h":                       "percent-encoded",
		"amqp://u:hunter2@h?a;b":                     "percent-encoded",
		"amqp://u:hunter2@h:port":                    "percent-encoded",
		"amqp://u:hunter2@h?prefetch=5":              `unknown option "prefetch"`,
		"amqp://u:hunter2@h?queue_type=stream":       `"stream"`,
		"amqp://h?queue_type=quorum&queue_type=x":    `option "queue_type" is set 2 times`,
		"amqp://u:hunter2@h?topology=own":            `"own"`,
		"amqp://u:hunter2@h?topic_exchange=e":        "for the topology",
		"amqp://u:hunter2@h?delivery_limit=0":        "want a number",
		"amqp://u:hunter2@h?consumer_timeout=5":      "want a second or more",
		"amqp://u:hunter2@h?channel_max=many":        "percent-encoded",
		"amqp://h?management=http://u:hunter2%40h:1": "no user",
	} {
		_, err := rabbitmq.ParseURL(url)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: error %v, want one with %q and without the password", url, err, want)
		}
	}
}

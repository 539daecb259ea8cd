package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/transport/asb"
	"github.com/holdfast-go/holdfast/transport/postgres"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
	"github.com/holdfast-go/holdfast/transport/sqlite"
	"github.com/holdfast-go/holdfast/transport/sqlserver"
	"github.com/holdfast-go/holdfast/transport/sqs"
)

func TestTransportsAreFoundByTheirURL(t *testing.T) {
	for url, want := range map[string]any{
		"sqlite:orders.db":       &sqlite.Transport{Path: "orders.db"},
		"sqlite:/var/lib/o.db":   &sqlite.Transport{Path: "/var/lib/o.db"},
		"sqlite:///var/lib/o.db": &sqlite.Transport{Path: "/var/lib/o.db"},
		"SQLITE:orders.db":       &sqlite.Transport{Path: "orders.db"},
		"amqp://u:p@host:5672/v": &rabbitmq.Transport{URL: "amqp://u:p@host:5672/v", ConnectionName: programName},
		"amqps://host/%2f":       &rabbitmq.Transport{URL: "amqps://host/%2f", ConnectionName: programName},
		"amqp://h?queue_type=classic&channel_max=5": &rabbitmq.Transport{
			URL: "amqp://h?channel_max=5", QueueType: rabbitmq.Classic, ConnectionName: programName,
		},
		"amqp://h?topology=direct&topic_exchange=shop.events&delivery_limit=-1": &rabbitmq.Transport{
			URL: "amqp://h", Topology: rabbitmq.Direct, TopicExchange: "shop.events", DeliveryLimit: rabbitmq.None, ConnectionName: programName,
		},
		"postgres://u@h/db?schema=app&sslmode=disable": &postgres.Transport{
			URL: "postgres://u@h/db?sslmode=disable", Schema: "app",
		},
		"sqlserver://sa:p%40ss@h:1433?database=shop&schema=app": &sqlserver.Transport{
			URL: "sqlserver://sa:p%40ss@h:1433?database=shop", Schema: "app",
		},
		"sqs://":             &sqs.Transport{},
		"sqs://eu-central-1": &sqs.Transport{Region: "eu-central-1"},
		"sqs://eu-central-1?profile=shop&endpoint=http://127.0.0.1:4566&queue_prefix=q-&topic_prefix=t-": &sqs.Transport{
			Region: "eu-central-1", Profile: "shop", Endpoint: "http://127.0.0.1:4566", QueuePrefix: "q-", TopicPrefix: "t-",
		},
		"postgresql://h/db": &postgres.Transport{URL: "postgresql://h/db"},
		"sb://key:a%2Fb+c=@h:5673?emulator=true&administration=http://h:5300&hierarchy=prod&max_message_size=1048576": &asb.Transport{
			ConnectionString: "Endpoint=sb://h:5673;SharedAccessKeyName=key;SharedAccessKey=a/b+c=;UseDevelopmentEmulator=true",
			Administration:   "http://h:5300", Hierarchy: "prod", MaxMessageSize: 1 << 20,
		},
		"Endpoint=sb://h/;SharedAccessKeyName=key;SharedAccessKey=a/b": &asb.Transport{
			ConnectionString: "Endpoint=sb://h/;SharedAccessKeyName=key;SharedAccessKey=a/b",
		},
	} {
		got, err := parseTransport(url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		if diff := cmp.Diff(want, any(got.Transport)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", url, diff)
		}
	}
}

// An error about a URL does not show the password.
func TestBadTransportURLsAreExplained(t *testing.T) {
	for url, want := range map[string]string{
		"redis://user:hunter2@host":                  "sqlite:orders.db", // the list of what there is
		"orders.db":                                  "unknown scheme",
		"redis:user:hunter2@host":                    "unknown scheme",
		"redis://hunter2@host":                       "unknown scheme",
		"sqlite:":                                    "no file",
		"memory:orders":                              "nothing after the colon",
		"amqp:localhost":                             "no host",
		"amqp://user:hunter2/x@host":                 "percent-encoded",
		"postgres://user:hunter2@host:port/db":       "percent-encoded",
		"sqlserver://sa:hunter2@host:port":           "percent-encoded",
		"sqlserver:localhost":                        "no host",
		"amqp://u:hunter2@host?queue_type=stream":    `use "quorum" or "classic"`,
		"amqp://u:hunter2@host?topology=own":         `use "conventional" or "direct"`,
		"amqp://u:hunter2@host?topic_exchange=e":     `for the topology "direct"`,
		"amqp://u:hunter2@host?delivery_limit=many":  "want a number",
		"amqp://u:hunter2@host?delivery_limit=0":     "want a number",
		"sb://key@host":                              "a key name without a key",
		"sb://host?emulator=true":                    "needs a key",
		"sb://key:hunter2@host/sales":                "a path follows the host",
		"sb://key:hunter2@host?lock=1s":              "unknown option",
		"sb://key:hunter2@host?max_message_size=1MB": "want a number of bytes",
		"Endpoint=amqp://h;SharedAccessKey=hunter2":  "unknown scheme",
		"sqs://key:hunter2@eu-central-1":             "credentials come from",
		"sqs:eu-central-1":                           "want sqs://REGION",
		"sqs://eu-central-1/orders":                  "want sqs://REGION",
		"sqs://eu-central-1?endpoint=localhost":      "no host",
		"sqs://eu-central-1?region=eu":               "unknown option \"region\"",
	} {
		_, err := parseTransport(url)
		if err == nil {
			t.Errorf("%s: no error", url)
			continue
		}
		if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got error %q, want one with %q and without the password", url, err, want)
		}
	}
}

func TestAnIdentityOfTheEnvironmentStandsInForAKey(t *testing.T) {
	t.Setenv("AZURE_TENANT_ID", "tenant")
	t.Setenv("AZURE_CLIENT_ID", "client")
	t.Setenv("AZURE_CLIENT_SECRET", "hunter2")
	got, err := parseTransport("sb://shop.servicebus.windows.net")
	if err != nil {
		t.Fatal(err)
	}
	bus, ok := got.Transport.(*asb.Transport)
	if !ok || bus.Namespace != "shop.servicebus.windows.net" || bus.Credential == nil || bus.ConnectionString != "" {
		t.Errorf("got %+v", got.Transport)
	}
}

func TestRedactTakesOutPasswordsInEveryForm(t *testing.T) {
	const url = "postgres://shop:p%40ss%2Fword@db/x?password=s3cret"
	for text, want := range map[string]string{
		"dial " + url:                          "dial postgres://shop:xxxxx@db/x?password=xxxxx",
		"password p@ss/word was refused":       "password xxxxx was refused",
		"conn string p%40ss%2Fword":            "conn string xxxxx",
		"other amqp://a:b@c/d":                 "other amqp://a:xxxxx@c/d",
		"user without one amqp://a@c/d":        "user without one amqp://a@c/d",
		"sqlserver://h?user+id=sa&pwd=hunter2": "sqlserver://h?user+id=sa&pwd=xxxxx",
		"Endpoint=sb://h;SharedAccessKeyName=n;SharedAccessKey=hunter2/=;X=1": "Endpoint=sb://h;SharedAccessKeyName=n;SharedAccessKey=xxxxx;X=1",
		"read /var/lib/x: permission denied":                                  "read /var/lib/x: permission denied",
		"key=value form: password=s3cret x=1":                                 "key=value form: password=xxxxx x=1",
		"one of amqp://user:pw@host/vhost":                                    "one of amqp://user:pw@host/vhost",
	} {
		if got := redact(text, url); got != want {
			t.Errorf("redact(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestRedactHidesAWordInThePlaceOfThePassword(t *testing.T) {
	const url = "postgres://postgres:postgres@db/postgres"
	for text, want := range map[string]string{
		"postgres: dial " + url:                      "postgres: dial postgres://postgres:xxxxx@db/postgres",
		"other postgres://a:postgres@h/postgres":     "other postgres://a:xxxxx@h/postgres",
		`{"transport": "` + url + `"}`:               `{"transport": "postgres://postgres:xxxxx@db/postgres"}`,
		`holdfast: queue "error": postgres: no such`: `holdfast: queue "error": postgres: no such`,
		`the password "postgres" was refused`:        `the password "xxxxx" was refused`,
		"user=postgres password=postgres dbname=x":   "user=postgres password=xxxxx dbname=x",
	} {
		if got := redact(text, url); got != want {
			t.Errorf("redact(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestRedactHidesAPasswordWithSpaces(t *testing.T) {
	const url = `amqp://shop:pa ss/"word"@db/x`
	if got := redact("parse "+url+": invalid", url); got != "parse amqp://shop:xxxxx@db/x: invalid" {
		t.Errorf("got %q", got)
	}
}

package main

import (
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
)

// channel is one to prepare a virtual host with.
func channel(t *testing.T, url string) *amqp.Channel {
	t.Helper()
	c, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	ch, err := c.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

// provision runs a command that creates or verifies.
func provision(t *testing.T, wantCode int, args ...string) (r report, errs string) {
	t.Helper()
	code, out, errs := call(t, "", append(args, "--json")...)
	if code != wantCode {
		t.Errorf("holdfast %q: exit code %d, want %d: %s", args, code, wantCode, errs)
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("holdfast %q prints %q: %v: %s", args, out, err, errs)
	}
	return r, errs
}

func TestAnEndpointIsCreatedAndVerified(t *testing.T) {
	t.Parallel()
	setenv(t, transportVar, brokertest.RabbitMQ(t))
	const delays = 2*29 + 3 // levels, lost, arrivals and deliveries
	endpoint := []string{"sales", "--audit", "audit", "--instance", "7"}
	create, verify := append([]string{"endpoint", "create"}, endpoint...), append([]string{"endpoint", "verify"}, endpoint...)

	r, errs := provision(t, exitFailed, verify...)
	missing := len(r.Found)
	if r.OK || missing < 2*5+delays || !strings.Contains(errs, `endpoint "sales": `) || !strings.Contains(errs, "missing") {
		t.Errorf("nothing there: %+v, %s", r, errs)
	}
	r, _ = provision(t, exitOK, append(create, "--dry-run")...)
	if !r.DryRun || len(r.Created) != missing {
		t.Errorf("dry run: %+v", r)
	}
	r, _ = provision(t, exitOK, "rabbitmq", "delays", "create")
	if !r.OK || len(r.Created) != delays {
		t.Errorf("delays create: %+v, want %d created", r, delays)
	}
	r, _ = provision(t, exitOK, create...)
	if !r.OK || len(r.Created) != missing-delays {
		t.Errorf("half there: %+v, want %d created", r, missing-delays)
	}
	for _, again := range [][]string{verify, create, {"rabbitmq", "delays", "verify"}, {"rabbitmq", "delays", "create"}} {
		if r, _ := provision(t, exitOK, again...); !r.OK || len(r.Created) > 0 {
			t.Errorf("%q: all there: %+v", again, r)
		}
	}
	if out := must(t, "", verify...); !strings.HasPrefix(out, "endpoint \"sales\": all is there, as it should be\npolicies that drop or refuse messages") {
		t.Errorf("verify prints %q", out)
	}
	setenv(t, transportVar, getenv(t)(transportVar)+"?queue_type=classic")
	r, _ = provision(t, exitFailed, verify...)
	if len(r.Found) == 0 || slices.ContainsFunc(r.Found, func(f transport.Finding) bool { return f.State != "differs" || f.Kind != "queue" }) {
		t.Errorf("as if for classic queues: %+v", r)
	}
}

func TestWhatDiffersIsToldAndLeftAlone(t *testing.T) {
	t.Parallel()
	address := brokertest.RabbitMQ(t)
	setenv(t, transportVar, address)
	ch := channel(t, address)
	if _, err := ch.QueueDeclare("sales", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	other := amqp.Table{"x-queue-type": "quorum", "x-message-ttl": 5}
	if _, err := ch.QueueDeclare("holdfast.delay-level-03", true, false, false, false, other); err != nil {
		t.Fatal(err)
	}
	code, out, errs := call(t, "", "endpoint", "create", "sales")
	if code != exitFailed || !strings.Contains(errs, `endpoint "sales": 2 with other settings`) ||
		!strings.Contains(out, "differs  queue     sales") || !strings.Contains(out, "x-queue-type") {
		t.Errorf("create: exit code %d, %s\n%s", code, out, errs)
	}
	r, _ := provision(t, exitFailed, "endpoint", "verify", "sales")
	if len(r.Found) != 2 {
		t.Errorf("verify after create: %+v", r)
	}
	r, _ = provision(t, exitFailed, "rabbitmq", "delays", "verify")
	if len(r.Found) != 1 || r.Found[0].Name != "holdfast.delay-level-03" || r.Found[0].State != "differs" {
		t.Errorf("delays verify: %+v", r)
	}
	if _, err := ch.QueueDelete("holdfast.delay-level-03", false, false, false); err != nil {
		t.Fatal(err)
	}
	provision(t, exitOK, "rabbitmq", "delays", "create")
}

// The test has a node of its own, whose start takes many seconds, because users belong to the whole
// node.
func TestChaosMissingRightsAreTold(t *testing.T) {
	t.Parallel()
	brokertest.Fault(t)
	node := brokertest.OwnRabbitMQ(t)
	node.Control("add_user", "reader", "s3cret-reader")
	t.Cleanup(func() { node.Control("delete_user", "reader") })
	u, err := url.Parse(node.URL)
	if err != nil {
		t.Fatal(err)
	}
	vhost := strings.TrimPrefix(u.Path, "/")
	node.Control("set_permissions", "-p", vhost, "reader", "", ".*", ".*")
	must(t, "", "endpoint", "create", "sales", "--transport", node.URL)

	u.User = url.UserPassword("reader", "s3cret-reader")
	setenv(t, transportVar, u.String())
	r, errs := provision(t, exitFailed, "endpoint", "verify", "sales")
	if len(r.Found) == 0 || slices.ContainsFunc(r.Found, func(f transport.Finding) bool { return f.State != "unknown" || f.Detail == "" }) {
		t.Errorf("all there: %+v", r)
	}
	if !strings.Contains(errs, "right to configure") {
		t.Errorf("verify says %s", errs)
	}
	for _, args := range [][]string{{"endpoint", "create", "other"}, {"rabbitmq", "delays", "create"}} {
		code, _, errs := call(t, "", args...)
		if code != exitFailed || !strings.Contains(errs, "ACCESS_REFUSED") || strings.Contains(errs, "s3cret") {
			t.Errorf("%q: exit code %d, %s", args, code, errs)
		}
	}
}

func TestLostDelaysAreFoundAndReturned(t *testing.T) {
	t.Parallel()
	address := brokertest.RabbitMQ(t)
	setenv(t, transportVar, address)
	if code, _, errs := call(t, "", "rabbitmq", "delays", "lost"); code != exitFailed || !strings.Contains(errs, "delays create") {
		t.Errorf("before there are delays: exit code %d, %s", code, errs)
	}
	ch := channel(t, address)
	// A delay lasts at least a second on RabbitMQ. On a busy machine the delay may end before the
	// queue is deleted, and the message is deleted with the queue: then the test tries a longer delay.
	for after := time.Second; ; after *= 2 {
		if after > time.Minute {
			t.Fatal("each delayed message arrived before its queue was deleted")
		}
		must(t, "{}", "send", "--to", "doomed", "--type", "Shop.Remind", "--header", "NServiceBus.MessageId=one", "--after", after.String(), "--create")
		if out := must(t, "", "rabbitmq", "delays", "lost"); !strings.HasPrefix(out, "no delayed message was lost") {
			t.Errorf("with none: %s", out)
		}
		arrived, err := ch.QueueDelete("doomed", false, false, false)
		if err != nil {
			t.Fatal(err)
		}
		if arrived == 0 {
			break
		}
	}
	until(t, "the delayed message is found lost", func() (any, bool) {
		out := must(t, "", "queues", "holdfast.delay-lost", "--json")
		return out, strings.Contains(out, `"ready":1`)
	})
	code, out, errs := call(t, "", "rabbitmq", "delays", "lost")
	if code != exitFailed || !strings.Contains(out, "one  Shop.Remind  doomed") || !strings.Contains(errs, "1 message in holdfast.delay-lost") {
		t.Errorf("with one: exit code %d\n%s\n%s", code, out, errs)
	}
	if _, out, _ = call(t, "", "rabbitmq", "delays", "lost", "--json"); out != `{"id":"one","type":"Shop.Remind","queue":"doomed"}`+"\n" {
		t.Errorf("as JSON: %s", out)
	}
	must(t, "", "endpoint", "create", "sales")
	must(t, "", "errors", "retry", "one", "--queue", "holdfast.delay-lost", "--to", "sales")
	returned(t, "one")
	must(t, "", "rabbitmq", "delays", "lost")
}

func TestRabbitMQRefusesWhatMakesNoSense(t *testing.T) {
	setenv(t, transportVar, "amqp://localhost")
	for _, c := range []struct{ args, text string }{
		{"endpoint create", "the name of one endpoint"},
		{"endpoint verify a b", "the name of one endpoint"},
		{"endpoint create sales --error=", "error queue"},
		{"endpoint create sales --instance=", "no id"},
		{"endpoint create " + strings.Repeat("n", 190), "a name of 201 bytes"},
		{"endpoint create sales --transport amqp://localhost?queue_type=stream", `use "quorum" or "classic"`},
		{"endpoint crate", "did you mean create?"},
		{"rabbitmq delays verify --transport sqlite:q.db", "amqp://"},
		{"rabbitmq delays verify now", "unknown command"},
	} {
		code, _, errs := call(t, "", strings.Fields(c.args)...)
		if code != exitUsage || !strings.Contains(errs, c.text) {
			t.Errorf("holdfast %s: exit code %d, %s", c.args, code, errs)
		}
	}
}

func TestChaosCommandsOverTLSWithCertificates(t *testing.T) {
	t.Parallel()
	brokertest.Fault(t)
	listener := brokertest.OwnRabbitMQ(t).ListenTLS()
	setenv(t, transportVar, listener.URL+"?cacertfile="+listener.CA+"&certfile="+listener.ClientCert+"&keyfile="+listener.Key+"&topology=direct")
	if r, _ := provision(t, exitOK, "endpoint", "create", "sales"); !r.OK || slices.ContainsFunc(r.Created, func(p part) bool { return p.Name == "sales" && p.Kind != "queue" }) {
		t.Errorf("created: %+v", r)
	}
	must(t, "{}", "send", "--to", "sales", "--type", "Shop.Order")
	if out := must(t, "", "queues", "sales", "--json"); !strings.Contains(out, `"ready":1`) {
		t.Errorf("queues: %s", out)
	}
	code, _, errs := call(t, "", "queues", "sales", "--transport", listener.URL)
	if code != exitFailed || !strings.Contains(errs, "certificate") {
		t.Errorf("an unknown authority: exit code %d, %s", code, errs)
	}
}

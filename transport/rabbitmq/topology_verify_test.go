package rabbitmq_test

import (
	"slices"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

func verify(t *testing.T, c transport.Conn, plan transport.Plan) []transport.Finding {
	t.Helper()
	findings, err := c.(transport.Verifier).Verify(patiently(t), plan)
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(findings, func(f transport.Finding) bool { return f.State == transport.Unread })
}

var wholePlan = transport.Plan{
	Queues: []transport.Queue{{Name: "sales"}, {Name: "sales.quarantine", Counted: true}, {Name: "error", Shared: true}},
	Types:  [][]string{{"Shop.Placed", "Shop.Event"}},
	Delays: true,
}

func TestVerifyFindsNothingAfterInstall(t *testing.T) {
	t.Parallel()
	for _, change := range []func(*rabbitmq.Transport){nil, classic} {
		c := open(t, brokertest.RabbitMQ(t), change)
		missing := verify(t, c, wholePlan)
		// The three queues and the delays' 29, each with its exchange, dead letters, the delays'
		// two other exchanges and their other queue, two relays, two types.
		if want := 2*3 + 2*29 + 1 + 3 + 2 + 2; len(missing) != want {
			t.Errorf("%d findings where there is nothing, want %d", len(missing), want)
		}
		for _, f := range missing {
			if f.State != transport.Missing {
				t.Errorf("where there is nothing: %+v", f)
			}
		}
		if again := verify(t, c, wholePlan); len(again) != len(missing) {
			t.Errorf("to verify has created something: %d findings, then %d", len(missing), len(again))
		}
		must(t, c.(transport.Installer).Install(within(t), wholePlan))
		if found := verify(t, c, wholePlan); len(found) != 0 {
			t.Errorf("after Install: %+v", found)
		}
	}
}

func TestVerifyKnowsTheDirectTopology(t *testing.T) {
	t.Parallel()
	for name, exchanges := range map[string]int{"direct": 0, "direct through an exchange of its own": 1} {
		t.Run(name, func(t *testing.T) {
			c := open(t, brokertest.RabbitMQ(t), topologies[name])
			missing := verify(t, c, wholePlan)
			if want := 3 + 1 + 2*29 + 3 + 2 + exchanges; len(missing) != want { // no exchange of a queue or a type
				t.Errorf("%d findings where there is nothing, want %d: %+v", len(missing), want, missing)
			}
			must(t, c.(transport.Installer).Install(within(t), wholePlan))
			if found := verify(t, c, wholePlan); len(found) != 0 {
				t.Errorf("after Install: %+v", found)
			}
		})
	}
}

func TestVerifyNamesDifferences(t *testing.T) {
	t.Parallel()
	url := brokertest.RabbitMQ(t)
	raw := rawChannel(t, url)
	for name, args := range map[string]amqp.Table{
		"sales":                   nil, // a classic one
		"holdfast.delay-level-03": {"x-queue-type": "quorum", "x-message-ttl": 5},
	} {
		if _, err := raw.QueueDeclare(name, true, false, false, false, args); err != nil {
			t.Fatal(err)
		}
	}
	must(t, raw.ExchangeDeclare("holdfast.delay-arrivals", amqp.ExchangeTopic, true, false, false, false, nil))
	must(t, raw.ExchangeDeclare("error", amqp.ExchangeDirect, true, false, false, false, nil))
	c := open(t, url, nil)
	must(t, rabbitmq.InstallDelays(within(t), c)) // makes the rest
	differ := map[string]string{
		"queue sales":                      "in the place of 'quorum'", // it says none on 3.x, 'classic' on 4.x
		"exchange error":                   "type",
		"exchange holdfast.delay-arrivals": "alternate-exchange",
		"queue holdfast.delay-level-03":    "another x-message-ttl: '5' in the place of '8000'",
	}
	for _, f := range verify(t, c, wholePlan) {
		name := f.Kind + " " + f.Name
		switch text, ok := differ[name]; {
		case ok && (f.State != transport.Differs || !strings.Contains(f.Detail, text)):
			t.Errorf("%+v, want one that differs in %s", f, text)
		case !ok && (f.State != transport.Missing || strings.Contains(f.Name, "delay") && !strings.HasPrefix(f.Name, "holdfast.delay-to.")):
			t.Errorf("unexpected: %+v", f)
		}
		delete(differ, name)
	}
	if len(differ) != 0 {
		t.Errorf("not found: %v", differ)
	}
}

func TestInstallDelaysCompletesALadder(t *testing.T) {
	t.Parallel()
	url := brokertest.RabbitMQ(t)
	c := open(t, url, nil)
	plan := transport.Plan{Delays: true}
	must(t, c.(transport.Installer).Install(within(t), plan))
	raw := rawChannel(t, url)
	if _, err := raw.QueueDelete("holdfast.delay-level-07", false, false, false); err != nil {
		t.Fatal(err)
	}
	must(t, raw.ExchangeDelete("holdfast.delay-level-00", false, false))
	if found := verify(t, c, plan); len(found) != 2 {
		t.Errorf("found %+v, want the two that were deleted", found)
	}
	must(t, rabbitmq.InstallDelays(within(t), c))
	if found := verify(t, c, plan); len(found) != 0 {
		t.Errorf("found %+v after InstallDelays", found)
	}
}

func TestInstallDelaysIsForItsOwnConnections(t *testing.T) {
	c, err := (&inmemory.Transport{}).Open(within(t), transport.Env{})
	must(t, err)
	defer c.Close()
	if rabbitmq.InstallDelays(within(t), c) == nil {
		t.Error("a connection of another transport is accepted")
	}
}

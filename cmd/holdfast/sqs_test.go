package main

import (
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

// sqsURL names the stand-in, with names that no other test has.
func sqsURL(t *testing.T) string {
	return "sqs://eu-central-1?endpoint=" + brokertest.SQS(t) + "&queue_prefix=" + brokertest.Name(t, "")
}

// onSQS has the commands of a test use the stand-in.
func onSQS(t *testing.T) {
	t.Helper()
	setenv(t, transportVar, sqsURL(t))
}

func TestCommandsWorkOnAmazonSQS(t *testing.T) {
	t.Parallel()
	onSQS(t)
	must(t, "{}", "send", "--to", "sales", "--type", "T", "--create")
	must(t, "", "bench", "--work", "loop", "--messages", "50", "--concurrency", "4")
	out := must(t, "", "queues", "--json")
	if strings.Contains(out, "bench") || !strings.Contains(out, `"name":"sales","ready":1`) {
		t.Errorf("queues afterwards: %s", out)
	}
	if out := must(t, "", "queues", "peek", "sales", "--json"); !strings.Contains(out, `"body"`) {
		t.Errorf("the message: %s", out)
	}
	code, _, errs := call(t, "", "queues", "missing")
	if code != exitFailed || !strings.Contains(errs, "no such queue") {
		t.Errorf("a queue that does not exist: exit code %d, %s", code, errs)
	}
}

// An endpoint is created, subscribed and deleted.
func TestAnEndpointIsAdministeredOnAmazonSQS(t *testing.T) {
	t.Parallel()
	onSQS(t)
	queues := func() (names []string) {
		out := must(t, "", "queues")
		for _, line := range strings.Split(out, "\n")[1:] {
			if name, _, ok := strings.Cut(line, " "); ok {
				names = append(names, name)
			}
		}
		return names
	}
	for range 2 {
		must(t, "", "endpoint", "create", "billing", "--audit", "audit", "--instance", "7", "--type", "Shop.Paid")
	}
	if got, want := strings.Join(queues(), " "), "audit billing billing-7 billing-dead-letters billing-quarantine error"; got != want {
		t.Errorf("created: %s, want %s", got, want)
	}
	if out := must(t, "", "sqs", "policy", "show", "billing"); strings.TrimSpace(out) != "{}" {
		t.Errorf("the policy of a new queue: %s", out)
	}
	must(t, "", "endpoint", "subscribe", "billing", "Shop.Placed", "Shop.Cancelled")
	must(t, "", "sqs", "policy", "set", "billing", "Shop.Later")
	policy := must(t, "", "sqs", "policy", "show", "billing")
	for _, topic := range []string{":Shop-Placed", ":Shop-Cancelled", ":Shop-Later"} {
		if !strings.Contains(policy, topic+`"`) {
			t.Errorf("%s is not let in by %s", topic, policy)
		}
	}
	must(t, "", "sqs", "policy", "set", "billing", "Shop.Later", "--wide")
	if policy := must(t, "", "sqs", "policy", "show", "billing"); strings.Contains(policy, "Shop-Placed") || !strings.Contains(policy, `:*"`) {
		t.Errorf("a wide policy: %s", policy)
	}
	must(t, "", "endpoint", "delete", "billing", "--instance", "7", "--yes")
	if got := strings.Join(queues(), " "); got != "audit error" {
		t.Errorf("left: %s", got)
	}
	must(t, "", "endpoint", "delete", "billing", "--yes")
}

func TestSQSCommandsWantATransportOfSQS(t *testing.T) {
	code, _, errs := call(t, "", "sqs", "policy", "show", "billing", "--transport", "sqlite:x.db")
	if code != exitUsage || !strings.Contains(errs, "give one with sqs://") {
		t.Errorf("exit code %d, %s", code, errs)
	}
	if code, _, _ := call(t, "", "endpoint", "create", "--transport", "sqs://eu"); code != exitUsage {
		t.Errorf("no name: exit code %d", code)
	}
}

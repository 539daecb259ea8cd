package main

import (
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

func TestCommandsWorkOnPostgreSQL(t *testing.T) {
	url := brokertest.Postgres(t) + "&schema=app"
	must(t, "{}", "send", "--transport", url, "--to", "sales", "--type", "T", "--create")
	for _, work := range []string{"receive", "send", "loop", "atomic"} {
		must(t, "", "bench", "--transport", url, "--work", work, "--messages", "100", "--concurrency", "4")
	}
	out := must(t, "", "queues", "--transport", url, "--json")
	if strings.Contains(out, "bench") || !strings.Contains(out, `"name":"sales","ready":1`) {
		t.Errorf("queues afterwards: %s", out)
	}
}

func TestCommandsWorkOnRabbitMQ(t *testing.T) {
	url, queue := brokertest.RabbitMQ(t), brokertest.Name(t, "sales")
	must(t, "{}", "send", "--transport", url, "--to", queue, "--type", "T", "--create")
	for _, work := range []string{"receive", "send", "loop"} {
		must(t, "", "bench", "--transport", url, "--work", work, "--messages", "100", "--concurrency", "4")
	}
	must(t, "", "bench", "--transport", url+"?queue_type=classic", "--messages", "100", "--concurrency", "4")
	out := must(t, "", "queues", queue, "--transport", url, "--json")
	if !strings.Contains(out, queue) {
		t.Errorf("queues afterwards: %s", out)
	}
	if code, _, _ := call(t, "", "queues", programName+".dead-letters", "--transport", url); code != exitFailed {
		t.Error("there is a dead-letter queue without an endpoint")
	}
	code, _, errs := call(t, "", "queues", queue+"-missing", "--transport", url)
	if code != exitFailed || !strings.Contains(errs, "no such queue") {
		t.Errorf("a queue that does not exist: exit code %d, %s", code, errs)
	}
}

func TestCommandsWorkOnAzureServiceBus(t *testing.T) {
	url := brokertest.OwnServiceBus(t).URL()
	must(t, "{}", "send", "--transport", url, "--to", "sales", "--type", "T", "--create")
	for _, work := range []string{"receive", "send", "loop"} {
		must(t, "", "bench", "--transport", url, "--work", work, "--messages", "100", "--concurrency", "4")
	}
	out := must(t, "", "queues", "--transport", url, "--json")
	if strings.Contains(out, "bench") || !strings.Contains(out, `"name":"sales","ready":1`) {
		t.Errorf("queues afterwards: %s", out)
	}
	code, _, errs := call(t, "", "queues", "missing", "--transport", url)
	if code != exitFailed || !strings.Contains(errs, "no such queue") {
		t.Errorf("a queue that does not exist: exit code %d, %s", code, errs)
	}
}

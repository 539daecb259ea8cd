package main

import (
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

// Each work of bench on each broker.
func TestChaosBenchOnEachBroker(t *testing.T) {
	t.Parallel()
	brokertest.Fault(t)
	for name, url := range map[string]func(*testing.T) string{
		"postgres": emptyBrokers["postgres"], "own schema": emptyBrokers["own schema"], "rabbitmq": emptyBrokers["rabbitmq"],
		"classic": emptyBrokers["classic"], "sqs": sqsURL,
		"asb": func(t *testing.T) string { return brokertest.OwnServiceBus(t).URL() },
	} {
		for _, work := range []string{"receive", "send", "loop"} {
			t.Run(name+" "+work, func(t *testing.T) {
				must(t, "", "bench", "--transport", url(t), "--work", work, "--messages", "100", "--concurrency", "4")
			})
		}
	}
}

func TestCommandsWorkOnPostgreSQL(t *testing.T) {
	t.Parallel()
	url := brokertest.Postgres(t) + "&schema=app"
	must(t, "{}", "send", "--transport", url, "--to", "sales", "--type", "T", "--create")
	must(t, "", "bench", "--transport", url, "--work", "atomic", "--messages", "50", "--concurrency", "4")
	out := must(t, "", "queues", "--transport", url, "--json")
	if strings.Contains(out, "bench") || !strings.Contains(out, `"name":"sales","ready":1`) {
		t.Errorf("queues afterwards: %s", out)
	}
}

func TestCommandsWorkOnRabbitMQ(t *testing.T) {
	t.Parallel()
	url, queue := brokertest.RabbitMQ(t), brokertest.Name(t, "sales")
	must(t, "{}", "send", "--transport", url, "--to", queue, "--type", "T", "--create")
	must(t, "", "bench", "--transport", url, "--work", "loop", "--messages", "50", "--concurrency", "4")
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
	t.Parallel()
	url := brokertest.OwnServiceBus(t).URL()
	must(t, "{}", "send", "--transport", url, "--to", "sales", "--type", "T", "--create")
	must(t, "", "bench", "--transport", url, "--work", "loop", "--messages", "50", "--concurrency", "4")
	out := must(t, "", "queues", "--transport", url, "--json")
	if strings.Contains(out, "bench") || !strings.Contains(out, `"name":"sales","ready":1`) {
		t.Errorf("queues afterwards: %s", out)
	}
	code, _, errs := call(t, "", "queues", "missing", "--transport", url)
	if code != exitFailed || !strings.Contains(errs, "no such queue") {
		t.Errorf("a queue that does not exist: exit code %d, %s", code, errs)
	}
}

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/errorqueue"
	"github.com/holdfast-go/holdfast/internal/brokertest"
)

// emptyBrokers are the URLs of brokers without queues.
var emptyBrokers = map[string]func(*testing.T) string{
	"sqlite":     func(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "q.db") },
	"postgres":   func(t *testing.T) string { return brokertest.Postgres(t) },
	"rabbitmq":   func(t *testing.T) string { return brokertest.RabbitMQ(t) },
	"classic":    func(t *testing.T) string { return brokertest.RabbitMQ(t) + "?queue_type=classic" },
	"own schema": func(t *testing.T) string { return brokertest.Postgres(t) + "&schema=app" },
}

// onBrokers runs a test with the URL of each of the brokers.
func onBrokers(t *testing.T, brokers []string, run func(t *testing.T)) {
	t.Helper()
	for _, name := range brokers {
		t.Run(name, func(t *testing.T) {
			setenv(t, transportVar, emptyBrokers[name](t))
			run(t)
		})
	}
}

// Each command of errors on each broker.
func TestChaosErrorQueuesOnEachBroker(t *testing.T) {
	t.Parallel()
	brokertest.Fault(t)
	onBrokers(t, slices.Sorted(maps.Keys(emptyBrokers)), func(t *testing.T) {
		for name, test := range map[string]func(*testing.T){
			"look after": lookAfterErrors, "export": exportErrors, "undecodable": returnUndecodableHeaders,
		} {
			// The tests share the error queue: each begins with an empty one.
			if code, _, errs := call(t, "", "errors", "discard", "--all"); code != exitOK && !strings.Contains(errs, "no such queue") {
				t.Fatalf("exit code %d, %s", code, errs)
			}
			if code, _, errs := call(t, "", "errors", "discard", "--all", "--queue", "sales"); code != exitOK && !strings.Contains(errs, "no such queue") {
				t.Fatalf("exit code %d, %s", code, errs)
			}
			t.Run(name, test)
		}
	})
}

// fail puts a message into the queue error as an endpoint would that failed to handle it.
func fail(t *testing.T, id, typeName, failedQueue, class, text string) {
	t.Helper()
	args := []string{
		"send", "--to", "error", "--create", "--type", typeName,
		"--header", "NServiceBus.MessageId=" + id, "--header", "Holdfast.Fault.Class=" + class,
		"--header", "NServiceBus.ExceptionInfo.Message=" + text,
		"--header", "NServiceBus.TimeOfFailure=2026-01-02 03:04:05:000000 Z",
	}
	if failedQueue != "" {
		args = append(args, "--header", "NServiceBus.FailedQ="+failedQueue)
	}
	must(t, `{"id":"`+id+`"}`, args...)
}

// inQueue are the ids of the messages in a queue, in its order.
func inQueue(t *testing.T, queue string, filters ...string) (ids []string) {
	t.Helper()
	out := must(t, "", append([]string{"errors", "list", "--json", "--queue", queue}, filters...)...)
	for d := json.NewDecoder(strings.NewReader(out)); d.More(); {
		var e errorqueue.Entry
		if err := d.Decode(&e); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, e.ID)
	}
	return ids
}

func holds(t *testing.T, queue string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, inQueue(t, queue)); diff != "" {
		t.Errorf("queue %s (-want +got):\n%s", queue, diff)
	}
}

func TestTheErrorQueueIsLookedAfter(t *testing.T) {
	t.Parallel()
	onBrokers(t, []string{"sqlite", "postgres", "rabbitmq"}, lookAfterErrors)
}

func lookAfterErrors(t *testing.T) {
	must(t, "{}", "send", "--to", "sales", "--create", "--type", "T", "--header", "NServiceBus.MessageId=first")
	fail(t, "a", "Shop.PlaceOrder", "sales", "timeout", "no answer of amqp://u:hunter22@host")
	fail(t, "b", "Shop.PlaceOrder", "sales", "panic", "nil map")
	fail(t, "c", "Shop.Bill", "gone", "timeout", "no answer")
	fail(t, "d", "Shop.Bill", "", "timeout", "no answer")

	table := must(t, "", "errors", "list")
	for _, want := range []string{"FAILED AT", "2026-01-02 03:04:05", "Shop.PlaceOrder", "nil map", "4 messages"} {
		if !strings.Contains(table, want) {
			t.Errorf("list lacks %q:\n%s", want, table)
		}
	}
	if shown := must(t, "", "errors", "show", "a"); !strings.Contains(shown, "error timeout:") ||
		!strings.Contains(shown, "NServiceBus.FailedQ: sales") || !strings.Contains(shown, `{"id":"a"}`) {
		t.Errorf("show prints:\n%s", shown)
	} else if strings.Contains(shown+table, "hunter22") {
		t.Errorf("a password is on the screen:\n%s\n%s", table, shown)
	}
	if got := inQueue(t, "error", "--class", "timeout", "--type", "Bill", "--since", "2026-01-01"); !slices.Equal(got, []string{"c", "d"}) {
		t.Errorf("filtered: %q", got)
	}
	must(t, "", "errors", "retry", "--type", "PlaceOrder", "--dry-run")
	holds(t, "error", "a", "b", "c", "d")

	must(t, "", "errors", "retry", "a", "--rate", "1000")
	code, out, errs := call(t, "", "errors", "retry", "--all", "--json")
	want := `{"queue":"error","matched":3,"done":1,"refused":2,"dry_run":false,"failures":[{"id":"c",`
	if code != exitFailed || !strings.HasPrefix(out, want) || !strings.Contains(errs, "no such queue") || !strings.Contains(errs, "--to") {
		t.Errorf("retry --all: exit code %d, %s, %s, want %s", code, out, errs, want)
	}
	holds(t, "error", "c", "d")
	must(t, "", "errors", "retry", "--class", "timeout", "--first", "1", "--to", "sales")
	returned(t, "first", "a", "b", "c")

	must(t, "", "errors", "discard", "d")
	if out := must(t, "", "errors", "list"); out != "no messages in error\n" {
		t.Errorf("list of an empty queue prints %q", out)
	}
}

// returned waits for what is on its way to sales.
func returned(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	for range 100 {
		if got = inQueue(t, "sales"); len(got) >= len(want) {
			break
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("in sales (-want +got):\n%s", diff)
	}
	for _, id := range got {
		if shown := must(t, "", "errors", "show", id, "--queue", "sales"); strings.Contains(shown, "Fault") || strings.Contains(shown, "FailedQ") {
			t.Errorf("%s has headers of the fault:\n%s", id, shown)
		}
	}
}

func TestExportHasEverything(t *testing.T) {
	onBrokers(t, []string{"sqlite"}, exportErrors)
}

func exportErrors(t *testing.T) {
	fail(t, "a", "Shop.PlaceOrder", "sales", "timeout", "no")
	fail(t, "b", "Shop.PlaceOrder", "sales", "timeout", "no")
	file := filepath.Join(t.TempDir(), "errors.jsonl")
	must(t, "", "errors", "export", "b", "--file", file)
	exported, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var r struct {
		ID      string
		Headers map[string]string
		Body    []byte
	}
	if err := json.Unmarshal(exported, &r); err != nil {
		t.Fatal(err)
	}
	if r.ID != "b" || r.Headers["NServiceBus.FailedQ"] != "sales" || string(r.Body) != `{"id":"b"}` {
		t.Errorf("exported %s", exported)
	}
	if code, _, errs := call(t, "", "errors", "export", "--file", file); code != exitFailed || !strings.Contains(errs, "exists") {
		t.Errorf("over a file that exists: exit code %d, %s", code, errs)
	}
	if lines := strings.Count(must(t, "", "errors", "export"), "\n"); lines != 2 {
		t.Errorf("%d lines exported, want 2", lines)
	}
	holds(t, "error", "a", "b")
}

// Listing counts as a delivery on RabbitMQ before 4.3: more than its delivery limit must not cost a
// message.
func TestLookingOftenLosesNothing(t *testing.T) {
	setenv(t, transportVar, brokertest.RabbitMQ(t))
	fail(t, "a", "Shop.PlaceOrder", "sales", "timeout", "no")
	fail(t, "b", "Shop.PlaceOrder", "sales", "timeout", "no")
	for range 25 {
		if ids := inQueue(t, "error"); len(ids) != 2 || !slices.Contains(ids, "a") || !slices.Contains(ids, "b") {
			t.Fatalf("the queue shows %q", ids)
		}
	}
	shown := must(t, "", "errors", "show", "a")
	if _, after, counted := strings.Cut(shown, "x-delivery-count: "); counted {
		var count int
		if _, err := fmt.Sscan(after, &count); err != nil || count > 10 {
			t.Errorf("delivery count %d (%v) after 25 looks:\n%s", count, err, shown)
		}
	}
}

func TestErrorsRefusesWhatMakesNoSense(t *testing.T) {
	setenv(t, transportVar, "sqlite:"+filepath.Join(t.TempDir(), "q.db"))
	for text, args := range map[string][]string{
		"no messages are selected to retry":   {"retry"},
		"no messages are selected to discard": {"discard"},
		"leave it out":                        {"discard", "--all", "--class", "x"},
		"--since \"soon\"":                    {"list", "--since", "soon"},
		"--until \"never\"":                   {"export", "--until", "never"},
		"--first -1":                          {"list", "--first", "-1"},
		"--rate -1":                           {"retry", "--all", "--rate", "-1"},
		"the id of one message":               {"show"},
		"unknown command":                     {"lst"},
		"one process":                         {"list", "--transport", "memory:"},
	} {
		if code, _, errs := call(t, "", append([]string{"errors"}, args...)...); code != exitUsage || !strings.Contains(errs, text) {
			t.Errorf("%q: exit code %d, %q, want %q", args, code, errs, text)
		}
	}
	must(t, "{}", "send", "--to", "error", "--create", "--type", "T")
	for text, args := range map[string][]string{
		"no such queue":                          {"list", "--queue", "errors"},
		"no message with the id \"missing\"":     {"show", "missing"},
		"no message with the id missing, absent": {"retry", "missing", "absent"},
	} {
		if code, _, errs := call(t, "", append([]string{"errors"}, args...)...); code != exitFailed || !strings.Contains(errs, text) {
			t.Errorf("%q: exit code %d, %q, want %q", args, code, errs, text)
		}
	}
}

func TestWhatAMessageSaysCannotDriveTheTerminal(t *testing.T) {
	setenv(t, transportVar, "sqlite:"+filepath.Join(t.TempDir(), "q.db"))
	fail(t, "a\x1b[2J", "Shop.\x1b[31mRed", "sales\a", "x\r\n", "clear\x1b]0;title\a")
	out := must(t, "", "errors", "list") + must(t, "", "errors", "show", "a\x1b[2J")
	if bytes.ContainsAny([]byte(out), "\x1b\a\r") {
		t.Errorf("control characters reach the screen: %q", out)
	}
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
)

// environments are the variables of tests, by the names of a test and of a variable.
var environments sync.Map

// setenv sets a variable for the commands that a test and its subtests call. Tests beside the test
// do not see the variable.
func setenv(t *testing.T, name, value string) {
	t.Helper()
	environments.Store([2]string{t.Name(), name}, value)
}

// getenv returns the function that reads the variables of a test. A subtest has the variables of its
// test too.
func getenv(t *testing.T) func(name string) string {
	return func(name string) string {
		for of, more := t.Name(), true; more; {
			if value, ok := environments.Load([2]string{of, name}); ok {
				return value.(string)
			}
			last := strings.LastIndex(of, "/")
			if more = last >= 0; more {
				of = of[:last]
			}
		}
		return ""
	}
}

// call runs the program with the input on its standard input.
func call(t *testing.T, input string, args ...string) (code int, out, errs string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code = run(args, streams{in: strings.NewReader(input), out: &stdout, err: &stderr, getenv: getenv(t)})
	return code, stdout.String(), stderr.String()
}

// must runs the program and fails the test unless it ends well.
func must(t *testing.T, input string, args ...string) string {
	t.Helper()
	code, out, errs := call(t, input, args...)
	if code != exitOK {
		t.Fatalf("holdfast %q: exit code %d: %s", args, code, errs)
	}
	return out
}

// until calls look until ok is true, and fails the test with the last state after two minutes. The
// bound is for a hang: a package that does not end hides the results of its other tests.
func until(t *testing.T, what string, look func() (state any, ok bool)) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); ; <-tick.C {
		state, ok := look()
		if ok {
			return
		}
		if time.Since(began) > 2*time.Minute {
			t.Fatalf("waited in vain: %s, still %+v", what, state)
		}
	}
}

func TestExitCodesTellWrongUsageFromFailure(t *testing.T) {
	setenv(t, transportVar, "")
	missing := filepath.Join(t.TempDir(), "missing", "q.db")
	for _, c := range []struct {
		name string
		args []string
		code int
		text string
	}{
		{"help", []string{"--help"}, exitOK, ""},
		{"nothing is help", []string{}, exitOK, ""}, // nil would be those of the test
		{"version", []string{"version"}, exitOK, ""},
		{"unknown command", []string{"quques"}, exitUsage, "did you mean queues?"},
		{"unknown flag", []string{"queues", "--fast"}, exitUsage, "unknown flag"},
		{"argument too many", []string{"version", "now"}, exitUsage, "unknown command"},
		{"required flag", []string{"send", "--to", "q"}, exitUsage, "--to and --type are required"},
		{"flag that is no number", []string{"bench", "--messages", "many"}, exitUsage, "invalid argument"},
		{"log level", []string{"queues", "--log-level", "loud"}, exitUsage, "--log-level"},
		{"log format", []string{"queues", "--log-format", "xml"}, exitUsage, "--log-format"},
		{"no transport", []string{"queues"}, exitUsage, transportVar},
		{"bad transport", []string{"queues", "--transport", "kafka://x"}, exitUsage, "unknown scheme"},
		{"unknown option", []string{"queues", "x", "--transport", "amqp://localhost/?queue_typ=classic"}, exitUsage, `unknown option "queue_typ"`},
		{"no id", []string{"errors", "show", "--transport", "amqp://localhost"}, exitUsage, "the id of one message"},
		{"memory from outside", []string{"queues", "--transport", "memory:"}, exitUsage, "one process"},
		{"RabbitMQ needs names", []string{"queues", "--transport", "amqp://localhost"}, exitUsage, "name them, as in"},
		{"work that there is not", []string{"bench", "--transport", "memory:", "--work", "sing"}, exitUsage, "want receive, send, loop, atomic or dual"},
		{"rate without receiving", []string{"bench", "--transport", "memory:", "--work", "send", "--rate", "5"}, exitUsage, "--rate"},
		{"demo of nothing", []string{"demo"}, exitUsage, "--input is required"},
		{"demo elsewhere", []string{"demo", "--input", "x", "--transport", "amqp://localhost"}, exitUsage, "sqlite:FILE or memory:"},
		{"demo that leaves nothing", []string{"demo", "--input", "x", "--transport", "memory:", "--verify"}, exitUsage, "need a file"},
		{"demo of no file", []string{"demo", "--input", missing, "--transport", "memory:"}, exitFailed, "no such file"},
		{"no such directory", []string{"queues", "--transport", "sqlite:" + missing}, exitFailed, "sqlite: open"},
		{"verify before a run", []string{"demo", "--input", "../../examples/orders.jsonl", "--verify", "--transport", "sqlite:" + missing}, exitFailed, "not been run"},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, _, errs := call(t, "", c.args...)
			if code != c.code || !strings.Contains(errs, c.text) {
				t.Errorf("exit code %d, want %d; standard error %q, want %q in it", code, c.code, errs, c.text)
			}
		})
	}
}

func TestAnInterruptEndsAReadThatBlocks(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	typed, _ := io.Pipe() // without input
	in := interruptible(ctx, typed)
	interrupt := errors.New("interrupt")
	cancel(interrupt)
	if _, err := io.ReadAll(in); !errors.Is(err, interrupt) {
		t.Errorf("reading ended with %v", err)
	}
	if err := typed.Close(); err != nil {
		t.Error(err)
	}
}

func TestPasswordsDoNotReachTheScreen(t *testing.T) {
	for _, url := range []string{
		"amqp://shop:hunter22@127.0.0.1:1/", "postgres://shop:hunter22@127.0.0.1:1/x?connect_timeout=1",
	} {
		code, out, errs := call(t, "", "queues", "sales", "--transport", url, "--log-level", "debug")
		if code != exitFailed || strings.Contains(out+errs, "hunter22") {
			t.Errorf("%s: exit code %d and %q, want a failure without the password", url, code, out+errs)
		}
	}
}

func TestSentMessagesAreCountedInTheirQueue(t *testing.T) {
	db := "sqlite:" + filepath.Join(t.TempDir(), "orders.db")
	setenv(t, transportVar, db)
	code, _, errs := call(t, "{}", "send", "--to", "sales", "--type", "Shop.PlaceOrder")
	if code != exitFailed || !strings.Contains(errs, "no such queue") {
		t.Fatalf("to a queue that does not exist: exit code %d, %s", code, errs)
	}
	must(t, `{"orderId":"1"}`, "send", "--to", "sales", "--type", "Shop.PlaceOrder", "--create")
	must(t, "{\"orderId\":\"2\"}\n\n{\"orderId\":\"3\"}\n", "send", "--to", "sales", "--type", "Shop.PlaceOrder", "--jsonl", "--count", "150")
	out := must(t, "{}", "send", "--to", "sales", "--type", "Shop.PlaceOrder", "--after", "1h", "--json")
	if want := `{"queue":"sales","sent":1}` + "\n"; out != want {
		t.Errorf("send --json printed %q, want %q", out, want)
	}

	var stats []transport.QueueStats
	if err := json.Unmarshal([]byte(must(t, "", "queues", "--json")), &stats); err != nil {
		t.Fatal(err)
	}
	if len(stats) != 1 || stats[0].Oldest <= 0 {
		t.Fatalf("queues are %+v, want sales with the age of its oldest message", stats)
	}
	stats[0].Oldest = 0
	want := []transport.QueueStats{{Name: "sales", Ready: 301, Delayed: 1}}
	if diff := cmp.Diff(want, stats); diff != "" {
		t.Errorf("queues (-want +got):\n%s", diff)
	}
	if table := must(t, "", "queues", "sales"); !strings.Contains(table, "QUEUE") || !strings.Contains(table, "301") {
		t.Errorf("the table is %q", table)
	}
	if code, _, errs := call(t, "", "queues", "billing"); code != exitFailed || !strings.Contains(errs, "billing") {
		t.Errorf("a queue that does not exist: exit code %d, %s", code, errs)
	}
}

func TestSendRefusesWhatMakesNoSense(t *testing.T) {
	setenv(t, transportVar, "sqlite:"+filepath.Join(t.TempDir(), "orders.db"))
	for text, args := range map[string][]string{
		"want name=value":      {"--header", "novalue"},
		"at least 1":           {"--count", "0"},
		"must not be negative": {"--after", "-1s"},
		"the body is empty":    {"--create"},
		"no such file":         {"--file", "missing.json"},
		"are required":         {"--to", ""},
	} {
		args = append([]string{"send", "--to", "sales", "--type", "T"}, args...)
		if code, _, errs := call(t, " \n", args...); code == exitOK || !strings.Contains(errs, text) {
			t.Errorf("%q: exit code %d, %q, want %q", args, code, errs, text)
		}
	}
}

func TestSentMessagesHaveTheHeadersOfAnEndpoint(t *testing.T) {
	s := sending{to: "sales", typeName: "Shop.PlaceOrder", count: 1, headers: []string{"Tenant=a=b", header.MessageID + "=own"}}
	if err := s.check(); err != nil {
		t.Fatal(err)
	}
	op := s.operation([]byte("{}"), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	h := op.Message.Headers
	for name, want := range map[string]string{
		header.MessageID: "own", header.MessageIntent: "Send", header.ContentType: "application/json",
		header.EnclosedMessageTypes: "Shop.PlaceOrder", header.TimeSent: "2026-01-02 03:04:05:000000 Z",
		header.OriginatingEndpoint: "holdfast", "Tenant": "a=b",
	} {
		if got := h.Get(name); got != want {
			t.Errorf("header %s is %q, want %q", name, got, want)
		}
	}
	if op.Message.ID != "own" || op.Queue != "sales" {
		t.Errorf("message %q to %q, want own to sales", op.Message.ID, op.Queue)
	}
}

func TestVersionIsJSONOnDemand(t *testing.T) {
	var v buildVersion
	if err := json.Unmarshal([]byte(must(t, "", "version", "--json")), &v); err != nil {
		t.Fatal(err)
	}
	if v.Module != "github.com/holdfast-go/holdfast/cmd/holdfast" || !strings.HasPrefix(v.Go, "go1.") {
		t.Errorf("version is %+v", v)
	}
}

func TestBenchMeasuresEveryWorkAndCleansUp(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bench.db")
	for _, url := range []string{"memory:", "sqlite:" + file} {
		for _, work := range []string{"receive", "send", "loop", "atomic"} {
			t.Run(url[:6]+" "+work, func(t *testing.T) {
				out := must(t, "", "bench", "--transport", url, "--work", work, "--messages", "200", "--headers", "15", "--json")
				var r map[string]any
				if err := json.Unmarshal([]byte(out), &r); err != nil {
					t.Fatal(err)
				}
				for _, key := range []string{
					"messages_per_second", "p50_ms", "p95_ms", "p99_ms", "cpu_us_per_message", "allocs_per_message", "peak_rss_bytes",
				} {
					if n, ok := r[key].(float64); !ok || n <= 0 {
						t.Errorf("%s is %v, want a positive number", key, r[key])
					}
				}
				if r["headers"] != 15.0 || r["work"] != work {
					t.Errorf("it measured %v with %v headers, want %s with 15", r["work"], r["headers"], work)
				}
			})
		}
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the file that the benchmark made is still there (%v)", err)
	}
}

func TestBenchMeasuresAnOutbox(t *testing.T) {
	memory := func(*testing.T) string { return "memory:" }
	sqlite := func(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "outbox.db") }
	postgres := func(t *testing.T) string { return brokertest.Postgres(t) }
	for _, test := range []struct {
		name   string
		outbox func(*testing.T) string
		works  []string
	}{
		{"memory", memory, []string{"loop"}}, {"sqlite", sqlite, []string{"receive", "loop", "atomic"}}, {"postgres", postgres, []string{"atomic"}},
	} {
		for _, work := range test.works {
			t.Run(test.name+" "+work, func(t *testing.T) {
				url := test.outbox(t)
				out := must(t, "", "bench", "--transport", "memory:", "--outbox", url, "--work", work, "--messages", "200", "--json")
				var r struct {
					Outbox    string  `json:"outbox"`
					Inbox     bool    `json:"inbox"`
					PerSecond float64 `json:"messages_per_second"`
					Writes    int     `json:"business_row_writes"`
				}
				if err := json.Unmarshal([]byte(out), &r); err != nil {
					t.Fatal(err)
				}
				if !strings.HasPrefix(r.Outbox, url[:6]) || !r.Inbox || r.PerSecond <= 0 || (r.Writes == 200) != (work == "atomic") {
					t.Errorf("measured %s", out)
				}
				if url != "memory:" && strings.Contains(must(t, "", "queues", "--transport", url, "--json"), "bench") {
					t.Error("the outbox is left behind")
				}
			})
		}
	}
	out := must(t, "", "bench", "--transport", "memory:", "--outbox", "memory:", "--inbox=false", "--messages", "50", "--json")
	if strings.Contains(out, `"inbox"`) {
		t.Errorf("without an inbox: %s", out)
	}
	out = must(t, "", "bench", "--transport", "memory:", "--outbox", postgres(t), "--work", "dual", "--messages", "50", "--json")
	if !strings.Contains(out, `"work":"dual"`) || strings.Contains(out, `"outbox"`) {
		t.Errorf("the work dual is reported as %s", out)
	}
	if code, _, errs := call(t, "", "bench", "--transport", "memory:", "--work", "dual"); code == 0 || !strings.Contains(errs, "--outbox") {
		t.Errorf("the work dual without a database: exit code %d, %s", code, errs)
	}
	if code, _, errs := call(t, "", "bench", "--transport", "memory:", "--outbox", "memory:", "--work", "send"); code != exitUsage {
		t.Errorf("exit code %d, %s", code, errs)
	}
}

func TestBenchLeavesAnExistingFileWithoutItsQueues(t *testing.T) {
	url := "sqlite:" + filepath.Join(t.TempDir(), "orders.db")
	must(t, "{}", "send", "--transport", url, "--to", "sales", "--type", "T", "--create")
	must(t, "", "bench", "--transport", url, "--work", "atomic", "--messages", "50")
	out := must(t, "", "queues", "--transport", url, "--json")
	if strings.Contains(out, "bench") || !strings.Contains(out, `"sales","ready":1`) {
		t.Errorf("queues afterwards: %s", out)
	}
}

func TestBenchAtARateMeasuresFromSendingToHandling(t *testing.T) {
	out := must(t, "", "bench", "--transport", "memory:", "--work", "receive", "--messages", "40", "--rate", "400", "--json")
	var r struct {
		Seconds float64 `json:"seconds"`
		P50     float64 `json:"p50_ms"`
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	if r.Seconds < 39.0/400 || r.P50 <= 0 {
		t.Errorf("40 messages at 400 a second took %v s, p50 %v ms", r.Seconds, r.P50)
	}
}

func TestBenchSaysWhichTransportsHaveTransactions(t *testing.T) {
	code, _, errs := call(t, "", "bench", "--transport", "amqp://127.0.0.1:1", "--work", "atomic")
	if want := "sqlite, postgres or memory"; code != exitFailed || !strings.Contains(errs, want) {
		t.Errorf("exit code %d, %q, want %q", code, errs, want)
	}
}

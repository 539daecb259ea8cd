package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/errorqueue"
	"github.com/holdfast-go/holdfast/internal/brokertest"
)

func TestChaosRetryKilledAtRandomLosesNothing(t *testing.T) {
	t.Parallel()
	if brokertest.Fault(t) {
		killRetries(t, 60, 1200, "sqlite", "postgres", "rabbitmq", "asb")
	} else {
		killRetries(t, 20, 400, "sqlite", "postgres", "rabbitmq", "asb")
	}
}

// One broker on which taking and sending are one unit, and one on which they are not.
func TestRetryKilledAtRandomLosesNothing(t *testing.T) {
	t.Parallel()
	killRetries(t, 4, 80, "sqlite", "rabbitmq")
}

// killRetries kills the command a number of times while the command returns messages, and counts the
// messages that have arrived in the end. If taking and sending are one unit, no message is doubled.
// Otherwise each kill may double one message.
func killRetries(t *testing.T, retryKills, messages int, brokers ...string) {
	program := program(t)
	urls := map[string]func(*testing.T) string{
		"sqlite":   func(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "q.db") },
		"postgres": func(t *testing.T) string { return brokertest.Postgres(t) },
		"rabbitmq": func(t *testing.T) string { return brokertest.RabbitMQ(t) },
		"asb":      busWithShortLocks,
	}
	for _, name := range brokers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := killing{program: program, url: urls[name](t), random: rand.New(rand.NewPCG(2026, 11))}
			k.create(t)
			k.add(t, messages)
			kills, moved := 0, 0
			for tries := 0; kills < retryKills; tries++ {
				if tries == 20*retryKills {
					t.Fatalf("%d of %d runs were killed while they returned messages: that proves nothing", kills, tries)
				}
				hit := k.killOne(t)
				switch moved = len(k.arrived(t, false)); {
				case moved == k.messages: // the run came through before the kill
					k.add(t, messages)
				case hit:
					kills++
				}
			}
			k.finish(t)
			doubled, most := 0, map[string]int{"rabbitmq": kills, "asb": kills}[name]
			for _, n := range k.arrived(t, true) {
				doubled += n - 1
			}
			if doubled > most {
				t.Errorf("%d messages have arrived twice, want at most %d", doubled, most)
			}
			t.Logf("%d kills, by when %d of %d messages had been returned; %d doubled", kills, moved, k.messages, doubled)
		})
	}
}

// busWithShortLocks is a namespace with an error queue whose messages wait a second when the
// command that had them was killed.
func busWithShortLocks(t *testing.T) string {
	n := brokertest.OwnServiceBus(t)
	n.ShortLock(time.Second)
	_, err := busAdmin(t, n).CreateQueue(t.Context(), "error", &admin.CreateQueueOptions{Properties: &admin.QueueProperties{
		LockDuration: to.Ptr("PT1S"), MaxDeliveryCount: to.Ptr[int32](1000),
	}})
	if err != nil {
		t.Fatal(err)
	}
	return n.URL()
}

// killing is an error queue whose retry is killed.
type killing struct {
	program, url string
	messages     int
	random       *rand.Rand
}

func TestRetryThatIsInterruptedSaysWhatItHasDone(t *testing.T) {
	t.Parallel()
	k := killing{program: program(t), url: "sqlite:" + filepath.Join(t.TempDir(), "q.db")}
	k.create(t)
	k.add(t, 20)
	cmd := exec.CommandContext(t.Context(), k.program, "errors", "retry", "--all", "--rate", "2",
		"--json", "--log-level", "info", "--transport", k.url)
	var out strings.Builder
	cmd.Stdout = &out
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(log)
	if _, err := lines.ReadString('\n'); err != nil { // the first message is retried
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, lines); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); code(err) != exitInterrupted {
		t.Errorf("it ended with %v, want exit code %d", err, exitInterrupted)
	}
	var o errorqueue.Outcome
	if err := json.Unmarshal([]byte(out.String()), &o); err != nil || o.Done == 0 || o.Done == k.messages {
		t.Errorf("it printed %q (%v), want what it has done", out.String(), err)
	}
	if got := len(k.arrived(t, false)); got != o.Done {
		t.Errorf("%d messages were returned, it says %d", got, o.Done)
	}
}

// create makes the queue to which the messages return.
func (k *killing) create(t *testing.T) {
	t.Helper()
	must(t, "{}", "send", "--transport", k.url, "--to", "sales", "--type", "Marker", "--create")
	must(t, "", "errors", "discard", "--all", "--queue", "sales", "--transport", k.url)
}

// add puts n more messages into the error queue.
func (k *killing) add(t *testing.T, n int) {
	t.Helper()
	var lines strings.Builder
	for range n {
		fmt.Fprintf(&lines, "{\"n\":%d}\n", k.messages)
		k.messages++
	}
	must(t, lines.String(), "send", "--transport", k.url, "--to", "error", "--create", "--type", "T", "--jsonl",
		"--header", "NServiceBus.FailedQ=sales")
}

// killOne kills a run after it has told of some messages, while it takes the next.
func (k *killing) killOne(t *testing.T) bool {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), k.program, "errors", "retry", "--all", "--log-level", "info", "--transport", k.url)
	cmd.Env = append(os.Environ(), transportVar+"=")
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(log)
	for told := 1 + k.random.IntN(15); told > 0 && lines.Scan(); {
		if strings.Contains(lines.Text(), "message retried") {
			told--
		}
	}
	moment, cancel := context.WithTimeout(t.Context(), time.Duration(k.random.Int64N(int64(3*time.Millisecond))))
	defer cancel()
	<-moment.Done()
	_ = cmd.Process.Kill() // unless it has ended
	return killed(cmd.Wait())
}

// finish lets the command run until nothing is left. A broker may need a moment to find out that
// the last one died with messages in its hands.
func (k *killing) finish(t *testing.T) {
	t.Helper()
	for range 100 {
		must(t, "", "errors", "retry", "--all", "--transport", k.url)
		if len(k.arrived(t, false)) >= k.messages {
			return
		}
	}
	t.Error("not all messages have arrived")
}

// arrived counts the messages in sales by what is in them; in the end it also waits for a message
// that is sent after all of them, on the same way.
func (k *killing) arrived(t *testing.T, end bool) map[string]int {
	t.Helper()
	counts := map[string]int{}
	if end {
		must(t, `{"n":"marker"}`, "send", "--transport", k.url, "--to", "error", "--type", "T", "--header", "NServiceBus.FailedQ=sales")
		must(t, "", "errors", "retry", "--all", "--transport", k.url)
	}
	for range 100 {
		clear(counts)
		k.count(t, counts)
		if !end || counts[`{"n":"marker"}`] > 0 {
			break
		}
	}
	if end {
		want := map[string]int{`{"n":"marker"}`: 1}
		for i := range k.messages {
			want[fmt.Sprintf(`{"n":%d}`, i)] = 1
		}
		for _, body := range slices.Sorted(maps.Keys(want)) {
			if counts[body] == 0 {
				t.Errorf("%s is lost", body)
			}
		}
	}
	return counts
}

func (k *killing) count(t *testing.T, counts map[string]int) {
	t.Helper()
	out := must(t, "", "errors", "export", "--queue", "sales", "--transport", k.url)
	for d := json.NewDecoder(strings.NewReader(out)); d.More(); {
		var r struct{ Body []byte }
		if err := d.Decode(&r); err != nil {
			t.Fatal(err)
		}
		counts[string(r.Body)]++
	}
}

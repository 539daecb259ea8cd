package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

// provenOutbox is the report of a run with an outbox.
type provenOutbox struct {
	Processed, Kills, Restarts int
	PoisonParked               int `json:"poison_parked"`
	InnocentsParked            int `json:"innocents_parked"`
	Outbox                     struct{ Rows, Arrived, Ghosts, Missing int }
}

func (p provenOutbox) check(t *testing.T, processed, poison int) {
	t.Helper()
	if p.Processed != processed || p.Outbox.Rows != processed || p.Outbox.Arrived != processed || p.PoisonParked != poison {
		t.Errorf("report %+v, want %d rows and as many messages", p, processed)
	}
	if p.Kills == 0 || p.Restarts < 3*poison {
		t.Error("nothing was killed, or not often enough by poison: that proves nothing")
	}
}

func TestTortureWithAnOutbox(t *testing.T) {
	t.Parallel()
	args := append([]string{"--transport", brokertest.RabbitMQ(t), "--outbox", brokertest.Postgres(t), "--seed", "1"}, fewKills...)
	proven(t, args...).check(t, 79, 1)
}

func TestChaosTortureWithAnOutbox(t *testing.T) {
	t.Parallel()
	messages := 400
	if brokertest.Fault(t) {
		messages = 2000
	}
	file := func(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "outbox.db") }
	server := func(t *testing.T) string { return brokertest.Postgres(t) }
	for name, test := range map[string]struct{ broker, outbox func(*testing.T) string }{
		"rabbitmq and postgres": {func(t *testing.T) string { return brokertest.RabbitMQ(t) }, server},
		"sqs and sqlite":        {sqsURL, file},
		"service bus":           {busOfShortLocks, server},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := proven(t, "--transport", test.broker(t), "--outbox", test.outbox(t), "--seed", "1", "--messages", strconv.Itoa(messages),
				"--workers", "2", "--concurrency", "2", "--handler", "20ms", "--kill-every", "1s", "--lease", "1s", "--poison", "1")
			p.check(t, messages-1, 1)
		})
	}
}

// proven runs torture.
func proven(t *testing.T, args ...string) (p provenOutbox) {
	t.Helper()
	text, err := json.Marshal(tortured(t, program(t), args...))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &p); err != nil {
		t.Fatal(err)
	}
	return p
}

// Connections to the broker are cut and the database restarts while workers are killed. A
// pace of at most 120 messages a second leaves time for lines of progress, and so for cuts. Cuts
// without a bound would make the run so long that one message is in flight at four kills.
func TestChaosTortureOfAnOutboxWithCutsAndRestarts(t *testing.T) {
	t.Parallel()
	messages, concurrency, most := "1500", "4", 4
	if brokertest.Fault(t) {
		messages, concurrency, most = "10000", "16", 20
	}
	program, node, broker := program(t), brokertest.OwnPostgres(t), brokertest.RabbitMQ(t)
	u, err := url.Parse(broker)
	if err != nil {
		t.Fatal("not a URL")
	}
	proxy := brokertest.NewProxy(t, u.Host)
	cmd := exec.CommandContext(t.Context(), program, "torture", "--json", "--transport", proxy.URL(t, broker), "--outbox", node.URL,
		"--messages", messages, "--poison", "0", "--failures", "0.05", "--concurrency", concurrency, "--handler", "100ms")
	cmd.Env = append(os.Environ(), transportVar+"=")
	var out bytes.Buffer
	cmd.Stdout = &out
	progress, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	cuts, restarts := 0, 0
	for lines := bufio.NewScanner(progress); lines.Scan(); {
		t.Log(lines.Text())
		_, counts, _ := strings.Cut(lines.Text(), "processed ")
		var done, of int
		if n, _ := fmt.Sscanf(counts, "%d of %d", &done, &of); n < 2 || done > of*3/4 || cuts == most {
			continue
		}
		if proxy.Cut(); cuts%2 == 0 {
			node.Restart(os.Interrupt)
			restarts++
		}
		cuts++
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %s", err, &out)
	}
	t.Logf("%d cuts, %d restarts of the database: %s", cuts, restarts, &out)
	var p provenOutbox
	if err := json.Unmarshal(out.Bytes(), &p); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(p.Processed) != messages || p.InnocentsParked != 0 || cuts < 2 || restarts == 0 {
		t.Errorf("%d cuts, %d restarts, report %+v", cuts, restarts, p)
	}
	p.check(t, p.Processed, 0)
}

func TestTortureRefusesOutboxesThatCannotWork(t *testing.T) {
	db := "sqlite:" + filepath.Join(t.TempDir(), "q.db")
	for want, args := range map[string][]string{
		"one process only":     {"--outbox", "memory:"},
		"there is none":        {"--outbox", db, "--transactions", "atomic"},
		"RabbitMQ is no datab": {"--outbox", "amqp://localhost"},
	} {
		code, _, errs := call(t, "", append([]string{"torture", "--transport", db}, args...)...)
		if code != exitUsage || !strings.Contains(errs, want) {
			t.Errorf("%q: exit code %d, %s", args, code, errs)
		}
	}
}

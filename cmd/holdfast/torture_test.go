package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

// tortured runs the built program and gives its JSON object.
func tortured(t *testing.T, program string, args ...string) map[string]any {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, append([]string{"torture", "--json"}, args...)...)
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Logf("%s", out)
	var report map[string]any
	if err := json.Unmarshal(out, &report); err != nil {
		t.Fatal(err)
	}
	return report
}

// At full size the load is that of the command's defaults, with three seeds.
func TestChaosTortureOnEveryTransport(t *testing.T) {
	t.Parallel()
	if brokertest.Fault(t) {
		tortureAll(t, everySubject, []string{"1", "2", "3"}, 3)
	} else {
		tortureAll(t, everySubject, []string{"1"}, 1, "--messages", "800", "--concurrency", "2", "--handler", "20ms",
			"--kill-every", "1s", "--lease", "5s", "--poison", "1")
	}
}

// fewKills is a load with fewer kills than move a message of the quarantine to the error queue. So
// a machine on which kills come faster than messages are handled breaks no invariant.
var fewKills = []string{
	"--messages", "80", "--workers", "2", "--concurrency", "2", "--handler", "20ms", "--kill-every", "300ms", "--max-kills", "2",
	"--lease", "5s", "--poison", "1",
}

// TestTortureWithAnOutbox has poison.
func TestTortureOnSQLite(t *testing.T) {
	t.Parallel()
	tortureAll(t, everySubject[:1], []string{"1"}, 0, append(fewKills, "--poison", "0")...)
}

// subjectOfTorture is a transport with a mode.
type subjectOfTorture struct {
	name string
	url  func(t *testing.T) string
	mode string
}

var everySubject = []subjectOfTorture{
	{"sqlite", func(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "torture.db") }, "receiveonly"},
	{"sqlite atomic", func(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "torture.db") }, "atomic"},
	{"postgres", func(t *testing.T) string { return brokertest.Postgres(t) }, "receiveonly"},
	{"postgres atomic", func(t *testing.T) string { return brokertest.Postgres(t) + "&schema=app" }, "atomic"},
	{"rabbitmq quorum", func(t *testing.T) string { return brokertest.RabbitMQ(t) }, "receiveonly"},
	{"azure service bus", busOfShortLocks, "receiveonly"},
	{"rabbitmq classic", func(t *testing.T) string { return brokertest.RabbitMQ(t) + "?queue_type=classic" }, "receiveonly"},
	{"sqs", sqsURL, "receiveonly"},
}

// tortureAll runs torture with a load on transports. A run without kills or without the deaths by
// poison proves nothing.
func tortureAll(t *testing.T, subjects []subjectOfTorture, seeds []string, poison float64, load ...string) {
	program := program(t)
	for _, test := range subjects {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			for _, seed := range seeds {
				args := append([]string{"--transport", test.url(t), "--transactions", test.mode, "--seed", seed}, load...)
				report := tortured(t, program, args...)
				for _, field := range []string{
					"sent", "processed", "lost", "handled_twice", "poison_parked", "innocents_parked", "max_attempts", "restarts", "seconds",
				} {
					if _, ok := report[field].(float64); !ok {
						t.Errorf("%s is %v", field, report[field])
					}
				}
				if report["poison_parked"] != poison || report["restarts"].(float64) < 3*poison || report["kills"] == 0.0 {
					t.Error("nothing was killed, or not often enough by poison: that proves nothing")
				}
			}
		})
	}
}

func busOfShortLocks(t *testing.T) string {
	n := brokertest.OwnServiceBus(t)
	n.ShortLock(time.Second)
	return n.URL()
}

// The control: without deaths no message is handled twice.
func TestTortureWithoutDeathsCountsNothingTwice(t *testing.T) {
	t.Parallel()
	report := tortured(t, program(t), "--transport", brokertest.RabbitMQ(t), "--messages", "100", "--workers", "1",
		"--handler", "5ms", "--poison", "0", "--kill-every", "0")
	for field, want := range map[string]float64{"processed": 100, "handled_twice": 0, "restarts": 0, "poison_parked": 0, "max_attempts": 2} {
		if report[field] != want {
			t.Errorf("%s is %v, want %v", field, report[field], want)
		}
	}
}

func TestTortureLeavesNothingBehindUnlessAskedTo(t *testing.T) {
	program, db := program(t), filepath.Join(t.TempDir(), "torture.db")
	t.Setenv("TMPDIR", t.TempDir())
	args := []string{"--transport", "sqlite:" + db, "--messages", "20", "--workers", "1", "--poison", "0", "--kill-every", "0"}
	tortured(t, program, args...)
	if left := files(t, db, os.TempDir()); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	tortured(t, program, append(args, "--keep")...)
	if left := files(t, db, os.TempDir()); len(left) != 2 {
		t.Errorf("left behind with --keep: %q", left)
	}
}

// files are the file and what is in the folder, as far as there is any.
func files(t *testing.T, file, folder string) []string {
	t.Helper()
	one, err := filepath.Glob(file)
	if err != nil {
		t.Fatal(err)
	}
	others, err := filepath.Glob(filepath.Join(folder, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.Concat(one, others)
}

func TestTortureThatIsInterruptedLeavesNothingBehind(t *testing.T) {
	program, db := program(t), filepath.Join(t.TempDir(), "torture.db")
	t.Setenv("TMPDIR", t.TempDir())
	cmd := exec.CommandContext(t.Context(), program, "torture", "--transport", "sqlite:"+db, "--messages", "5000", "--poison", "0")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	for buffer := make([]byte, 1000); !strings.Contains(said.String(), "processed"); {
		n, err := stderr.Read(buffer)
		if err != nil {
			t.Fatal(err)
		}
		said.Write(buffer[:n])
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); code(err) != exitInterrupted {
		t.Errorf("it ended with %v", err)
	}
	if left := files(t, db, os.TempDir()); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestTortureSaysWhatIsWrongWithItsFlags(t *testing.T) {
	db := "sqlite:" + filepath.Join(t.TempDir(), "torture.db")
	for _, test := range []struct {
		args []string
		text string
	}{
		{[]string{"--transport", "memory:"}, "use sqlite:FILE"},
		{[]string{"--transport", db, "--transactions", "none"}, "want receiveonly or atomic"},
		{[]string{"--transport", db, "--poison", "2000"}, "poison must be between"},
		{[]string{"--transport", db, "--lease", "0"}, "--lease and --timeout"},
		{[]string{"--transport", db, "--workers", "0"}, "at least 1"},
	} {
		code, _, errs := call(t, "", append([]string{"torture"}, test.args...)...)
		if code != exitUsage || !strings.Contains(errs, test.text) {
			t.Errorf("%q: exit code %d, %s", test.args, code, errs)
		}
	}
}

func TestTortureIsAtomicOnlyWhereTheTransportIs(t *testing.T) {
	code, _, errs := call(t, "", "torture", "--transport", brokertest.RabbitMQ(t), "--transactions", "atomic")
	if code != exitUsage || !strings.Contains(errs, "use receiveonly") {
		t.Errorf("exit code %d, %s", code, errs)
	}
}

// A broken invariant is exit code 1, with the ids of the messages in the report. How long the
// workers need to start and the messages to be sent depends on the machine, so the time is extended
// until there is a report.
func TestTortureThatDoesNotFinishFails(t *testing.T) {
	program := program(t)
	t.Setenv("TMPDIR", t.TempDir())
	for timeout := time.Second; ; timeout *= 2 {
		db := filepath.Join(t.TempDir(), "torture.db")
		var errs bytes.Buffer
		cmd := exec.CommandContext(t.Context(), program, "torture", "--transport", "sqlite:"+db, "--json", "--messages", "200",
			"--poison", "0", "--workers", "1", "--concurrency", "1", "--handler", "1s", "--kill-every", "0", "--timeout", timeout.String())
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if len(out) == 0 && strings.Contains(errs.String(), "the time is up") && timeout < time.Minute {
			continue
		}
		if code(err) != exitFailed || !strings.Contains(string(out), `"invariant":"not finished`) || !strings.Contains(string(out), `-200"`) {
			t.Errorf("it ended with %v: %.300s\n%s", err, out, &errs)
		}
		if left := files(t, db, os.TempDir()); len(left) != 2 {
			t.Errorf("left to be looked at: %q", left)
		}
		return
	}
}

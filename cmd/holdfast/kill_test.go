package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

// asCommand is set in the environment of the processes that the tests start: the test binary is the
// command in them. So no second program is compiled and linked for the tests.
const asCommand = "HOLDFAST_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	for name, value := range map[string]string{
		asCommand: "1", "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", // any for the stand-in
		transportVar: "", databaseVar: "",
	} {
		if err := os.Setenv(name, value); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	brokertest.Parallel("8")
	os.Exit(m.Run())
}

// program returns the path of the command.
func program(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// demoOn is the demo on the database in dir, in a process of its own.
func demoOn(ctx context.Context, program, dir string, args ...string) *exec.Cmd {
	args = append([]string{
		"demo", "--transport", "sqlite:" + filepath.Join(dir, "demo.db"),
		"--input", "../../examples/orders.jsonl", "--limit", "500", "--work", "2ms",
	}, args...)
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), transportVar+"=")
	return cmd
}

func TestChaosDemoAddsUpAfterKills(t *testing.T) {
	t.Parallel()
	if brokertest.Fault(t) {
		killDemo(t, 60, 60, 90, 150, 300, 600, 600, 60, 60, 90, 150, 300, 600, 600)
	} else {
		killDemo(t, 60, 60, 90, 150, 300, 600, 600)
	}
}

func TestDemoAddsUpAfterKills(t *testing.T) {
	t.Parallel()
	killDemo(t, 90, 300, 600)
}

// killDemo kills the demo again and again, each time within the milliseconds given, some of them
// within the import of the orders. A fixed seed chooses the moments. Where a demo ends too early to
// prove anything, another one begins.
func killDemo(t *testing.T, milliseconds ...time.Duration) {
	t.Helper()
	program, dir := program(t), t.TempDir()
	random := rand.New(rand.NewPCG(2026, 11))
	for try := 1; ; try++ {
		kills := 0
		for _, longest := range milliseconds {
			after := time.Duration(random.Int64N(int64(longest * time.Millisecond)))
			ctx, cancel := context.WithTimeout(t.Context(), after) // its end is a SIGKILL
			err := demoOn(ctx, program, dir).Run()
			cancel()
			if killed(err) {
				kills++
			}
		}
		if kills >= len(milliseconds)*2/3 {
			break
		}
		if try == 10 {
			t.Fatalf("only %d runs were killed: the demo ends too early to prove anything", kills)
		}
		dir = t.TempDir()
	}
	if out, err := demoOn(t.Context(), program, dir, "--verify").CombinedOutput(); code(err) != exitFailed {
		t.Errorf("verify before the end: %v\n%s", err, out)
	}
	out, err := demoOn(t.Context(), program, dir).CombinedOutput()
	if err != nil {
		t.Fatalf("the last run: %v\n%s", err, out)
	}
	out, err = demoOn(t.Context(), program, dir, "--verify").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "Verified: each of 500 lines") {
		t.Errorf("verify: %v\n%s", err, out)
	}
}

func TestDemoThatIsInterruptedSaysHowToGoOn(t *testing.T) {
	t.Parallel()
	program, dir := program(t), t.TempDir()
	cmd := demoOn(t.Context(), program, dir, "--work", "50ms") // so that it is not over before it is interrupted
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(stdout)
	for line := ""; !strings.Contains(line, "s  finished "); { // the first line of progress
		if line, err = lines.ReadString('\n'); err != nil {
			t.Fatalf("no progress: %v", err)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(lines)
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); code(err) != exitInterrupted {
		t.Errorf("it ended with %v, want exit code %d", err, exitInterrupted)
	}
	if !strings.Contains(string(rest), "moved to error") || !strings.Contains(stderr.String(), "run it again to go on") {
		t.Errorf("it printed %q and %q", rest, stderr.String())
	}
}

func killed(err error) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

func code(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	return -1
}

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
	"sync"
	"syscall"
	"testing"
	"time"
)

// built is the folder of the program, once a test has built it.
var built string

var buildOnce = sync.OnceValues(func() (string, error) {
	program := filepath.Join(built, "holdfast")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil { //nolint:noctx // for all tests
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return program, nil
})

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	var err error
	if built, err = os.MkdirTemp("", "holdfast-test-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(built)
	return m.Run()
}

// build returns the program as users run it, built once for all tests.
func build(t *testing.T) string {
	t.Helper()
	program, err := buildOnce()
	if err != nil {
		t.Fatal(err)
	}
	return program
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

// TestDemoAddsUpAfterKills kills the demo again and again at moments that a fixed seed
// chooses, some of them within the import of the orders.
func TestDemoAddsUpAfterKills(t *testing.T) {
	t.Parallel()
	program, dir := build(t), t.TempDir()
	random := rand.New(rand.NewPCG(2026, 11))
	kills := 0
	for _, longest := range []time.Duration{60, 60, 90, 150, 300, 600, 600} {
		after := time.Duration(random.Int64N(int64(longest * time.Millisecond)))
		ctx, cancel := context.WithTimeout(t.Context(), after) // its end is a SIGKILL
		err := demoOn(ctx, program, dir).Run()
		cancel()
		if killed(err) {
			kills++
		}
	}
	if kills < 5 {
		t.Fatalf("only %d runs were killed: the demo ends too early to prove anything", kills)
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
	program, dir := build(t), t.TempDir()
	cmd := demoOn(t.Context(), program, dir)
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

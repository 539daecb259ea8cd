package baddays_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/postgres"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

// earlierCommit is the version that shares queues with this one.
const earlierCommit = "d3b9596"

// buildFrom returns a program that is built from a commit of this repository.
func buildFrom(t *testing.T, commit string, program []byte) (executable string) {
	t.Helper()
	dir := t.TempDir()
	source := filepath.Join(dir, "source")
	must(t, os.MkdirAll(filepath.Join(source, "cmd", "worker"), 0o700))
	archive := exec.CommandContext(t.Context(), "git", "archive", commit)
	archive.Dir = "../.."
	text, err := archive.Output()
	if err != nil {
		t.Fatalf("git archive %s: %v: this test needs the history of the repository, so no shallow clone", commit, err)
	}
	unpack := exec.CommandContext(t.Context(), "tar", "x", "-C", source)
	unpack.Stdin = bytes.NewReader(text)
	must(t, unpack.Run())
	must(t, os.WriteFile(filepath.Join(source, "cmd", "worker", "main.go"), program, 0o600))
	executable = filepath.Join(dir, commit)
	build(t, source, "./cmd/worker", executable)
	return executable
}

func build(t *testing.T, folder, pkg, out string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", out, pkg)
	cmd.Dir = folder
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build %s: %v\n%s", pkg, err, text)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// mixture is workers of two versions on one queue.
type mixture struct {
	t             *testing.T
	broker, place string
	more          []string // arguments of the program
	conn          transport.Conn

	mu       sync.Mutex // guards the rest
	attempts map[int]int
	crashes  int
}

// work keeps a worker running until stop is closed: one that a message has ended is started again.
func (m *mixture) work(ctx context.Context, program string, stop <-chan struct{}) {
	for ctx.Err() == nil {
		crashed, err := m.runOnce(ctx, program, stop)
		if err != nil {
			m.t.Errorf("%s: %v", filepath.Base(program), err)
			return
		}
		if !crashed {
			return
		}
		m.mu.Lock()
		m.crashes++
		m.mu.Unlock()
	}
}

func (m *mixture) runOnce(ctx context.Context, program string, stop <-chan struct{}) (crashed bool, err error) {
	cmd := exec.CommandContext(ctx, program, append([]string{m.broker, m.place}, m.more...)...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return false, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return false, err
	}
	if err := cmd.Start(); err != nil {
		return false, err
	}
	over := make(chan struct{})
	go func() {
		select {
		case <-stop:
		case <-over:
		}
		_ = stdin.Close()
	}()
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		var n int
		var outcome string
		if _, err := fmt.Sscan(lines.Text(), &n, &outcome); err != nil {
			return false, err
		}
		m.mu.Lock()
		m.attempts[n]++
		m.mu.Unlock()
	}
	close(over)
	err = cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 3 {
		return true, nil
	}
	return false, err
}

func (m *mixture) send(ctx context.Context, from, to int) {
	m.t.Helper()
	for n := from; n < to; n++ {
		message := &transport.Message{ID: strconv.Itoa(n), Body: []byte(`{"N":` + strconv.Itoa(n) + `}`), Headers: header.New(
			header.Field{Name: header.EnclosedMessageTypes, Value: "Mixed.Task"},
			header.Field{Name: header.ContentType, Value: "application/json"},
		)}
		if _, err := m.conn.Dispatch(ctx, []transport.Operation{{Queue: "mixed", Message: message}}); err != nil {
			m.t.Fatal(err)
		}
	}
}

// collect receives from a queue until each of want was there, and returns how often.
func (m *mixture) collect(ctx context.Context, queue string, want map[int]bool) map[int]int {
	m.t.Helper()
	r, err := m.conn.OpenReceiver(ctx, transport.ReceiverOptions{Queue: queue})
	must(m.t, err)
	defer func() { must(m.t, r.Close()) }()
	r.Window(200)
	got := map[int]int{}
	for len(got) < len(want) {
		ds, err := r.Receive(ctx, 100)
		if err != nil {
			m.t.Fatalf("%s: %d of %d messages: %v", queue, len(got), len(want), err)
		}
		for _, d := range ds {
			var body struct{ N int }
			must(m.t, json.NewDecoder(bytes.NewReader(d.Message().Body)).Decode(&body))
			if !want[body.N] {
				m.t.Errorf("%s has message %d, which does not belong there", queue, body.N)
			}
			got[body.N]++
			must(m.t, d.Complete(ctx))
		}
	}
	return got
}

func (m *mixture) transport() transport.Transport {
	switch m.broker {
	case "postgres":
		return &postgres.Transport{URL: m.place}
	case "sqlite":
		return &sqlite.Transport{Path: m.place}
	}
	return &rabbitmq.Transport{URL: m.place}
}

func twoVersions(t *testing.T) outcome {
	program, err := os.ReadFile("testdata/worker_" + earlierCommit + "/main.go")
	must(t, err)
	earlier := buildFrom(t, earlierCommit, program)
	present := filepath.Join(t.TempDir(), "present")
	build(t, ".", "./testdata/worker", present)
	for broker, place := range map[string]string{
		"postgres": brokertest.Postgres(t), "rabbitmq": brokertest.RabbitMQ(t), "sqlite": filepath.Join(t.TempDir(), "mixed.db"),
	} {
		t.Run(broker, func(t *testing.T) {
			m := &mixture{t: t, broker: broker, place: place, attempts: map[int]int{}}
			m.run(earlier, present)
		})
	}
	return outcome{message: "is attempted as often as configured", neighbours: "nothing is lost, nothing is counted anew"}
}

// run is a rolling upgrade and a step back: the earlier version, both, the present one alone, both.
func (m *mixture) run(earlier, present string) {
	t := m.t
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	const messages = 400
	stops := []chan struct{}{make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})}
	var workers sync.WaitGroup
	begin := func(program string, i int) { workers.Go(func() { m.work(ctx, program, stops[i]) }) }
	begin(earlier, 0)
	m.open(ctx)
	m.send(ctx, 0, messages/4)
	begin(present, 1)
	m.send(ctx, messages/4, messages/2)
	begin(present, 2)
	close(stops[0])
	m.send(ctx, messages/2, 3*messages/4)
	begin(earlier, 3)
	m.send(ctx, 3*messages/4, messages)
	results, errorQueue := map[int]bool{}, map[int]bool{}
	for n := range messages {
		if n%97 == 13 || n%10 == 0 {
			errorQueue[n] = true
		} else {
			results[n] = true
		}
	}
	sent := m.collect(ctx, "results", results)
	given := m.collect(ctx, "error", errorQueue)
	for _, stop := range stops[1:] {
		close(stop)
	}
	workers.Wait()
	must(t, m.conn.Close())
	m.verify(sent, given)
}

// open waits until the first worker has installed its queues.
func (m *mixture) open(ctx context.Context) {
	conn, err := m.transport().Open(ctx, transport.Env{})
	must(m.t, err)
	m.conn = conn
	if m.broker == "postgres" {
		m.createAsBefore(ctx)
	}
	must(m.t, conn.(transport.Installer).Install(ctx, transport.Plan{Queues: []transport.Queue{
		{Name: "mixed"}, {Name: "mixed.quarantine", Counted: true}, {Name: "results"}, {Name: "error", Shared: true},
	}}))
}

// createAsBefore creates the queue of results as the earlier version does, which cannot send to a
// table of this one, once the first worker has created its queues.
func (m *mixture) createAsBefore(ctx context.Context) {
	db, err := pgx.Connect(ctx, m.place)
	must(m.t, err)
	defer db.Close(ctx)
	for exists := false; !exists; {
		must(m.t, backoff.Sleep(ctx, 20*time.Millisecond))
		must(m.t, db.QueryRow(ctx, `SELECT to_regclass('error') IS NOT NULL`).Scan(&exists))
	}
	_, err = db.Exec(ctx, `CREATE TABLE results (LIKE mixed INCLUDING ALL)`)
	must(m.t, err)
}

// verify compares the results, the copies in the error queue and the attempts with the
// configuration. A process that ends interrupts its attempts, and each of these attempts is made
// again. On RabbitMQ the process also loses acknowledgements that were not applied yet, and the
// broker delivers these messages again: then a message has several copies, each with its attempts.
func (m *mixture) verify(sent, given map[int]int) {
	m.t.Helper()
	const (
		configured  = 6 // (2 immediate retries + 1) x (1 delayed one + 1)
		concurrency = 4 // of a worker
	)
	again := m.broker == "rabbitmq"
	for n, times := range sent {
		if times != 1 && !again {
			m.t.Errorf("result %d was sent %d times, want once", n, times)
		}
	}
	interrupted := 0
	for n, times := range given {
		if times != 1 && !again {
			m.t.Errorf("message %d is in the error queue %d times", n, times)
		}
		if n%97 == 13 { // it ends the process
			continue
		}
		more := max(0, m.attempts[n]-configured*times)
		if interrupted += more; more >= configured {
			m.t.Errorf("message %d, with %d copies in the error queue, was attempted %d times: its attempts were counted anew", n, times, m.attempts[n])
		}
	}
	if interrupted > concurrency*m.crashes {
		m.t.Errorf("%d attempts more than configured, of %d processes that ended", interrupted, m.crashes)
	}
	if m.crashes == 0 {
		m.t.Error("no message has ended a process, so the quarantine was not shared")
	}
	m.t.Logf("%s: %d results, %d messages given up, %d processes ended, %d attempts interrupted", m.broker, len(sent), len(given), m.crashes, interrupted)
}

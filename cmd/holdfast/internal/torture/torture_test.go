package torture

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/sqlitefile"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/testbed"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

// The test binary is its own worker: these variables say of what kind, and on which file.
const (
	kindVariable = "HOLDFAST_TORTURE_KIND"
	pathVariable = "HOLDFAST_TORTURE_PATH"
)

var faults = map[string]fault{"loses": loses, "doubles": doubles, "parks": parks, "withholds": withholds}

func TestMain(m *testing.M) {
	kind := os.Getenv(kindVariable)
	if kind == "" {
		os.Exit(m.Run())
	}
	if err := work(kind); err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(exitOwn)
	}
}

func work(kind string) error {
	if way, dies := strings.CutPrefix(kind, "dies by "); dies {
		return die(death(way))
	}
	if kind == "refuses" {
		return errors.New("the broker knows me not")
	}
	path, lease := os.Getenv(pathVariable), 10*time.Second // a lease that ends breaks invariants of its own
	if kind == "sound" {
		lease = time.Second // what was lost with a killed worker comes back soon
	}
	var t transport.Transport = file(path, lease)
	if f, faulted := faults[kind]; faulted {
		t = &faulty{t, f}
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	s := Subject{Transport: t, Table: testbed.TableOf(file(path, lease))}
	if path := os.Getenv(outboxVariable); path != "" {
		s.Outbox, s.Table = file(path, lease), testbed.TableOf(file(path, lease))
		if f, faulted := rowFaults[kind]; faulted {
			s.Outbox = &faultyOutbox{s.Outbox, f}
		}
	}
	return Work(context.Background(), Process{In: os.Stdin, Out: os.Stdout, Log: log}, s)
}

func file(path string, lease time.Duration) *sqlite.Transport {
	return &sqlite.Transport{Path: path, Lease: lease, Relaxed: true}
}

// bed is what a test tortures.
type bed struct {
	Options
	path     string
	env      []string // of the workers
	progress bytes.Buffer
	log      bytes.Buffer

	mu       sync.Mutex
	commands []*exec.Cmd
}

// prepare makes a bed whose workers are of that kind.
func prepare(t *testing.T, kind string) *bed {
	b := &bed{path: filepath.Join(t.TempDir(), "torture.db")}
	b.Options = Options{
		Load:    Load{Messages: 60, Workers: 2, Concurrency: 4, Handler: time.Millisecond, Failures: 0.1, Seed: 1},
		Subject: Subject{Transport: file(b.path, time.Second), Table: testbed.TableOf(file(b.path, time.Second))}, TempDir: t.TempDir(), Timeout: time.Minute,
		Progress: &b.progress, WorkerLog: io.Discard, Log: slog.New(slog.NewTextHandler(&b.log, nil)),
		Worker: func(ctx context.Context) *exec.Cmd {
			cmd := exec.CommandContext(ctx, os.Args[0])
			cmd.Env = append(os.Environ(), kindVariable+"="+kind, pathVariable+"="+b.path)
			cmd.Env = append(cmd.Env, b.env...)
			b.mu.Lock()
			defer b.mu.Unlock()
			b.commands = append(b.commands, cmd)
			return cmd
		},
	}
	return b
}

// queues returns the queues of the file.
func (b *bed) queues(t *testing.T) []transport.QueueStats {
	t.Helper()
	conn, err := file(b.path, time.Second).Open(t.Context(), transport.Env{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	queues, err := conn.(transport.Inspector).Inspect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return queues
}

// withKills returns a load with fewer kills than move a message of the quarantine to the error
// queue.
func withKills(l Load) Load {
	l.Messages, l.Handler, l.KillEvery, l.MaxKills = 600, 25*time.Millisecond, 300*time.Millisecond, 2
	return l
}

func TestASoundTransportStandsKills(t *testing.T) {
	for _, mode := range []Mode{ReceiveOnly, Atomic} {
		t.Run(fmt.Sprintf("mode %v", mode), func(t *testing.T) {
			t.Parallel()
			b := prepare(t, "sound")
			b.Mode = mode
			b.Load = withKills(b.Load)
			r, err := Run(t.Context(), b.Options)
			if err != nil {
				t.Fatal(err)
			}
			if !r.OK() || r.Sent != b.Messages || r.Processed != b.Messages || r.Kills == 0 || r.Restarts == 0 || r.MaxAttempts < 2 {
				t.Errorf("mode %v: %+v", mode, r)
			}
			if left := b.queues(t); len(left) > 0 {
				t.Errorf("left the queues %v", left)
			}
			if left, err := filepath.Glob(filepath.Join(b.TempDir, "*")); err != nil || len(left) > 0 {
				t.Errorf("left behind: %q, %v", left, err)
			}
		})
	}
}

func TestAFaultOfTheTransportIsFound(t *testing.T) {
	for _, test := range []struct {
		kind      string
		mode      Mode
		invariant string
	}{
		{"loses", Atomic, "lost"},
		{"doubles", Atomic, "handled more than once"},
		{"parks", ReceiveOnly, "innocent"},
	} {
		t.Run(fmt.Sprintf("%s, mode %v", test.kind, test.mode), func(t *testing.T) {
			t.Parallel()
			b := prepare(t, test.kind)
			b.Mode = test.mode
			r, err := Run(t.Context(), b.Options)
			if err != nil {
				t.Fatalf("%s: %v\n%s", test.kind, err, &b.progress)
			}
			if len(r.Broken) != 1 || !strings.HasPrefix(r.Broken[0].Invariant, test.invariant) ||
				len(r.Broken[0].Messages) != 1 || !strings.HasSuffix(r.Broken[0].Messages[0], "-7") {
				t.Errorf("%s: broken: %v\n%s", test.kind, r.Broken, &b.progress)
			}
			want := 3
			if test.mode == Atomic {
				want = 4 // its timers' too
			}
			if left := b.queues(t); len(left) != want || !strings.Contains(b.progress.String(), "kept for inspection: the queues torture-") {
				t.Errorf("%s: left %v, and said %s", test.kind, left, &b.progress)
			}
		})
	}
}

// A message that is handled twice breaks no invariant in the mode ReceiveOnly, and is counted.
func TestKeepLeavesAllBehind(t *testing.T) {
	t.Parallel()
	b := prepare(t, "doubles")
	b.Keep = true
	r, err := Run(t.Context(), b.Options)
	if err != nil {
		t.Fatal(err)
	}
	if !r.OK() || r.HandledTwice != 1 {
		t.Errorf("%+v", r)
	}
	if left := b.queues(t); len(left) != 3 || !strings.Contains(b.progress.String(), "kept for inspection") {
		t.Errorf("left %v, and said %s", left, &b.progress)
	}
}

func TestMissingMessagesAreNamedWhenTheTimeIsUp(t *testing.T) {
	t.Parallel()
	r := runUntil(t, func() *bed { return prepare(t, "withholds") }, func(r *Report) bool { return r.Unfinished == 1 })
	if len(r.Broken) != 1 || !strings.HasPrefix(r.Broken[0].Invariant, "not finished") || len(r.Broken[0].Messages) != 1 {
		t.Errorf("%+v", r)
	}
}

// runUntil runs beds with longer and longer timeouts, until a run had enough time for all messages
// but those that never end. How long the others take depends on the machine.
func runUntil(t *testing.T, prepare func() *bed, enough func(*Report) bool) *Report {
	t.Helper()
	for timeout := 3 * time.Second; ; timeout *= 2 {
		b := prepare()
		b.Timeout = timeout
		r, err := Run(t.Context(), b.Options)
		if err == nil && enough(r) {
			return r
		}
		if err != nil && !errors.Is(err, errTimeout) || timeout > time.Minute {
			t.Fatalf("in %v: %v, %+v\n%s", timeout, err, r, &b.progress)
		}
	}
}

// Without its queue there is no guard, and the message comes back for ever.
func TestPoisonThatIsNotParkedIsFound(t *testing.T) {
	t.Parallel()
	r := runUntil(t, func() *bed {
		b := prepare(t, "sound")
		b.Poison, b.Failures = 1, 0
		start := b.Worker
		b.Worker = func(ctx context.Context) *exec.Cmd {
			removeQuarantine(t, b.path)
			return start(ctx)
		}
		return b
	}, func(r *Report) bool { return r.Restarts > 0 })
	last := len(r.Broken) - 1
	if last != 1 || !strings.HasPrefix(r.Broken[0].Invariant, "not finished") ||
		!strings.HasPrefix(r.Broken[last].Invariant, "poison") || len(r.Broken[last].Messages) != 1 {
		t.Errorf("%+v", r)
	}
}

func removeQuarantine(t *testing.T, path string) {
	db, err := sqlitefile.Open(path)
	if err == nil {
		_, err = db.ExecContext(t.Context(), `delete from holdfast_queues where name like '%.quarantine'`)
		err = errors.Join(err, db.Close())
	}
	if err != nil {
		t.Error(err)
	}
}

func TestAWorkerThatCannotRunIsNotStartedForEver(t *testing.T) {
	t.Parallel()
	b := prepare(t, "refuses")
	_, err := Run(t.Context(), b.Options)
	if err == nil || !strings.Contains(err.Error(), "cannot run") || !strings.Contains(err.Error(), "the broker knows me not") {
		t.Errorf("got %v, want what the worker wrote", err)
	}
	if n := len(b.commands); n < maxRefusals || n > maxRefusals*b.Workers {
		t.Errorf("it was started %d times", n)
	}
	if left := b.queues(t); len(left) > 0 {
		t.Errorf("its queues are left behind: %v", left)
	}
}

func TestAnInterruptEndsAllWorkers(t *testing.T) {
	t.Parallel()
	b := prepare(t, "sound")
	b.Messages, b.Handler = 5000, 100*time.Millisecond
	ctx, interrupt := context.WithCancel(t.Context())
	b.Progress = writerFunc(func(p []byte) {
		if strings.Contains(string(p), "processed") {
			interrupt()
		}
	})
	if _, err := Run(ctx, b.Options); !errors.Is(err, context.Canceled) {
		t.Fatalf("it ended with %v", err)
	}
	for _, cmd := range b.commands {
		if cmd.ProcessState == nil {
			t.Errorf("worker %d still runs", cmd.Process.Pid)
		}
	}
	if left := b.queues(t); len(left) > 0 {
		t.Errorf("the queues are left behind: %v", left)
	}
}

type writerFunc func(p []byte)

func (f writerFunc) Write(p []byte) (int, error) { f(p); return len(p), nil }

// Its input ends when whoever started it is gone.
func TestAWorkerEndsWhenItsInputDoes(t *testing.T) {
	t.Parallel()
	b := prepare(t, "sound")
	a := assignment{Load: b.Load, Name: "torture-x", Folder: t.TempDir()}
	e, err := (&worker{assignment: a, Subject: b.Subject}).endpoint(b.Log)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Install(t.Context()); err != nil {
		t.Fatal(err)
	}
	in, parent := io.Pipe()
	p := Process{In: in, Out: writerFunc(func([]byte) { _ = parent.Close() }), Log: b.Log}
	go func() { _ = json.NewEncoder(parent).Encode(a) }()
	if err := Work(t.Context(), p, b.Subject); err != nil {
		t.Errorf("it ended with %v", err)
	}
}

func TestAtomicModeIsRefusedWhereThereIsNone(t *testing.T) {
	b := prepare(t, "sound")
	b.Mode, b.Table = Atomic, nil
	if _, err := Run(t.Context(), b.Options); !errors.Is(err, ErrNotOffered) {
		t.Errorf("no table: %v", err)
	}
	b.Transport = &withoutInspector{&inmemory.Transport{}}
	if _, err := Run(t.Context(), b.Options); err == nil || !strings.Contains(err.Error(), "cannot count the messages of its queues") {
		t.Errorf("no inspector: %v", err)
	}
}

type withoutInspector struct{ transport.Transport }

func (w *withoutInspector) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	conn, err := w.Transport.Open(ctx, env)
	return struct{ transport.Conn }{conn}, err
}

// Each way must end a process, and not look like a worker that could not run.
func TestEveryDeathEndsItsProcess(t *testing.T) {
	for _, way := range deaths {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), kindVariable+"=dies by "+string(way))
		var exit *exec.ExitError
		if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() == exitOwn {
			t.Errorf("%s: %v", way, err)
		}
	}
}

func TestTheTailOfAWorkersLogIsKept(t *testing.T) {
	var also bytes.Buffer
	kept := &tail{also: &also}
	for range 100 {
		fmt.Fprint(kept, strings.Repeat("x", 99), "y")
	}
	if got := kept.String(); len(got) != 4<<10 || !strings.HasSuffix(got, "xy") || also.Len() != 10000 {
		t.Errorf("kept %d of %d", len(got), also.Len())
	}
	if diff := cmp.Diff("ab", (&tail{kept: []byte("ab")}).String()); diff != "" {
		t.Error(diff)
	}
}

package sqlite

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// The test binary is also the program of the processes that the tests start and kill.
const (
	workerMode = "HOLDFAST_TEST_SQLITE_WORKER"
	workerFile = "HOLDFAST_TEST_SQLITE_FILE"
)

// workerLease is the time until the messages of a killed worker are delivered again.
const workerLease = time.Second

func TestMain(m *testing.M) {
	mode := os.Getenv(workerMode)
	if mode == "" {
		os.Exit(m.Run())
	}
	// The worker ends when its parent lets go of it, however that happens.
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	if err := work(ctx, mode, os.Getenv(workerFile)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// work is what a worker does until ctx ends.
func work(ctx context.Context, mode, path string) error {
	conn, err := (&Transport{Path: path, Lease: workerLease}).Open(ctx, transport.Env{Endpoint: "worker", Instance: strconv.Itoa(os.Getpid())})
	if err != nil {
		return err
	}
	plan := transport.Plan{Queues: []transport.Queue{{Name: queue}, {Name: "shipping"}}}
	if err := conn.(transport.Installer).Install(ctx, plan); err != nil {
		return errors.Join(err, conn.Close())
	}
	r, err := conn.OpenReceiver(ctx, transport.ReceiverOptions{Queue: queue})
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	switch mode {
	case "hold":
		err = holdOne(ctx, r)
	case "loop":
		err = handle(ctx, r, completeWith)
	case "atomic":
		err = handle(ctx, r, completeInTx)
	case "storm":
		err = storm(ctx, conn, r)
	default:
		err = fmt.Errorf("unknown mode %q", mode)
	}
	return errors.Join(err, conn.Close())
}

// holdOne receives a message, tells of it and never settles it.
func holdOne(ctx context.Context, r transport.Receiver) error {
	ds, err := r.Receive(ctx, 1)
	if err != nil {
		return err
	}
	fmt.Println("holding", ds[0].Message().ID, ds[0].Attempt().N)
	<-ctx.Done()
	return nil
}

type completion func(ctx context.Context, d transport.Delivery, ops []transport.Operation) error

// handle receives with eight handlers, which forward each message to shipping.
func handle(ctx context.Context, r transport.Receiver, complete completion) error {
	fmt.Println("ready")
	buffer := make(chan transport.Delivery)
	var mu sync.Mutex
	var errs []error
	var handling sync.WaitGroup
	for range 8 {
		handling.Go(func() {
			for d := range buffer {
				op := to("shipping", d.Message().ID)
				op.Message.Headers.Set("attempt", strconv.Itoa(d.Attempt().N))
				err := complete(context.Background(), d, []transport.Operation{op})
				if err != nil && !errors.Is(err, transport.ErrLeaseLost) {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
				}
			}
		})
	}
	var err error
	for ctx.Err() == nil && err == nil {
		var ds []transport.Delivery
		ds, err = r.Receive(ctx, 12)
		for _, d := range ds {
			buffer <- d
		}
	}
	close(buffer)
	handling.Wait()
	if ctx.Err() != nil {
		err = nil
	}
	return errors.Join(append(errs, err)...)
}

const stormSends = 400

// storm sends and handles as fast as it can.
func storm(ctx context.Context, conn transport.Conn, r transport.Receiver) error {
	var sending sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		sending.Go(func() {
			for n := range stormSends / len(errs) {
				op := to(queue, fmt.Sprintf("%d/%d/%d", os.Getpid(), i, n))
				if _, err := conn.Dispatch(context.Background(), []transport.Operation{op}); err != nil {
					errs[i] = err
				}
			}
		})
	}
	errs = append(errs, handle(ctx, r, completeInTx))
	sending.Wait()
	return errors.Join(errs...)
}

// process is a running worker.
type process struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	lines  *bufio.Scanner
	stderr strings.Builder
}

// start starts a worker, which is gone when the test has ended.
func start(t *testing.T, mode, path string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), workerMode+"="+mode, workerFile+"="+path)
	p.cmd.Stderr = &p.stderr
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.stdin, p.lines = stdin, bufio.NewScanner(stdout)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
	})
	return p
}

// says waits for a line of the worker.
func (p *process) says(t *testing.T, want string) {
	t.Helper()
	if !p.lines.Scan() || p.lines.Text() != want {
		p.kill(t)
		t.Fatalf("the worker says %q, want %q; %s", p.lines.Text(), want, p.stderr.String())
	}
}

// kill is kill -9. The worker must not have ended before.
func (p *process) kill(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = p.cmd.Wait()
	if p.cmd.ProcessState.Exited() {
		t.Errorf("the worker ended by itself: %s", p.stderr.String())
	}
}

// stop lets the worker finish.
func (p *process) stop(t *testing.T) {
	t.Helper()
	p.stdin.Close()
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("the worker failed: %v: %s", err, p.stderr.String())
	}
}

// eventually asks until the answer is yes.
func eventually(t *testing.T, limit time.Duration, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(limit); !done(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// counts are the number of distinct and of all values of a query's only column.
func counts(t *testing.T, db *sql.DB, from string) (distinct, all int) {
	t.Helper()
	row := db.QueryRowContext(t.Context(), `select count(distinct id), count(*) from `+from)
	if err := row.Scan(&distinct, &all); err != nil {
		t.Fatal(err)
	}
	return distinct, all
}

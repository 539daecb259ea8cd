package baddays_test

import (
	"bufio"
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
	"runtime/metrics"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/asb"
	"github.com/holdfast-go/holdfast/transport/postgres"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
	"github.com/holdfast-go/holdfast/transport/sqlite"
	"github.com/holdfast-go/holdfast/transport/sqs"
)

const (
	memoryVariable = "HOLDFAST_MEMORY_WORKER" // how the worker is to work, as JSON

	memoryConcurrency = 50
	// memoryHandling is how long a handler takes, so that as many messages are held as there is
	// room for.
	memoryHandling = 100 * time.Millisecond
	// memoryBeside is how much live heap is allowed beside the bound: what belongs to no message
	// that is held.
	memoryBeside = 64 << 20
)

func TestMain(m *testing.M) {
	if work := os.Getenv(memoryVariable); work != "" {
		if err := memoryWorker(work); err != nil {
			fmt.Fprintln(os.Stderr, "worker:", err)
			os.Exit(1)
		}
		return
	}
	brokertest.Parallel("8")
	os.Exit(m.Run())
}

// memoryWork is what a worker process does: it runs an endpoint on a transport until its standard
// input ends.
type memoryWork struct {
	Driver, Place, Queue string
	Bound                int64
}

// memoryUse is what a worker reports.
type memoryUse struct {
	Handled int64
	Live    uint64 // the most live heap after a collection
	RSS     int64  // the most resident memory
}

// large is a message whose body is mostly a field that its handler does not read.
type large struct{ N int }

func (w memoryWork) transport() (transport.Transport, error) {
	switch w.Driver {
	case "sqlite":
		return &sqlite.Transport{Path: w.Place, Relaxed: true}, nil
	case "postgres":
		return &postgres.Transport{URL: w.Place}, nil
	case "rabbitmq":
		return &rabbitmq.Transport{URL: w.Place}, nil
	case "servicebus":
		admin, connection, _ := strings.Cut(w.Place, " ")
		return &asb.Transport{ConnectionString: connection, Administration: admin}, nil
	case "sqs":
		config := &aws.Config{Region: "eu-central-1", Credentials: credentials.NewStaticCredentialsProvider("test", "test", "")}
		return &sqs.Transport{Endpoint: w.Place, Config: config, QueuePrefix: "l-"}, nil
	}
	return nil, fmt.Errorf("no driver %q", w.Driver)
}

func memoryWorker(text string) error {
	var w memoryWork
	if err := json.Unmarshal([]byte(text), &w); err != nil {
		return err
	}
	t, err := w.transport()
	if err != nil {
		return err
	}
	var handled atomic.Int64
	e, err := endpoint.New(endpoint.Config{
		Name: w.Queue, Transport: t, Concurrency: memoryConcurrency, MaxBufferedBytes: w.Bound,
		Messages: []endpoint.Message{endpoint.Command[large]("Memory.Large")},
		Handlers: []endpoint.Handler{endpoint.Handle(func(context.Context, *endpoint.Session, large) error {
			<-time.After(memoryHandling)
			fmt.Println(handled.Add(1))
			return nil
		})},
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	live := make(chan uint64)
	go func() { live <- mostLive(ctx) }()
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	if err := e.Run(ctx); err != nil {
		return err
	}
	rss, err := peakRSS()
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(memoryUse{handled.Load(), <-live, rss})
}

// mostLive returns the most live heap that a collection has found until ctx ends.
func mostLive(ctx context.Context) (most uint64) {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		metrics.Read(sample)
		most = max(most, sample[0].Value.Uint64())
		select {
		case <-ctx.Done():
			return most
		case <-tick.C:
		}
	}
}

func peakRSS() (int64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("no VmHWM in /proc/self/status")
}

// measureMemory sends total bytes of the largest messages through a worker process, with as much
// waiting at the broker all the time as four times the bound.
func measureMemory(t testing.TB, driver string, bound, total int64) memoryUse {
	t.Helper()
	w := memoryWork{Driver: driver, Queue: brokertest.Name(t, "large"), Bound: bound}
	size := 10 << 20
	switch driver {
	case "sqlite":
		w.Place = filepath.Join(t.TempDir(), "memory.db")
	case "postgres":
		w.Place = brokertest.Postgres(t)
	case "rabbitmq":
		w.Place = brokertest.RabbitMQ(t)
	case "servicebus":
		n := brokertest.OwnServiceBus(t)
		w.Place, size = n.Admin+" "+n.ConnectionString, 0
	case "sqs":
		w.Place, size = brokertest.SQS(t), 0
	}
	tr, err := w.transport()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	conn, err := tr.Open(ctx, transport.Env{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}()
	plan := transport.Plan{Queues: []transport.Queue{{Name: w.Queue}, {Name: w.Queue + ".quarantine", Counted: true}, {Name: "error", Shared: true}}}
	if err := conn.(transport.Installer).Install(ctx, plan); err != nil {
		t.Fatal(err)
	}
	if size == 0 {
		size = conn.Limits().MaxBody
	}
	messages := int(total / int64(size))
	ahead := int(min(4*bound/int64(size), int64(messages)))
	body := largeBody(size)
	send := func(n int) {
		for i := range n {
			op := transport.Operation{Queue: w.Queue, Message: &transport.Message{ID: strconv.Itoa(i), Body: body, Headers: header.New(
				header.Field{Name: header.EnclosedMessageTypes, Value: "Memory.Large"},
				header.Field{Name: header.ContentType, Value: "application/json"},
			)}}
			if _, err := conn.Dispatch(ctx, []transport.Operation{op}); err != nil {
				t.Fatal(err)
			}
		}
	}
	send(ahead)
	return w.drain(ctx, t, messages, ahead, send)
}

func largeBody(size int) []byte {
	const head, tail = `{"N":1,"Pad":"`, `"}`
	var b bytes.Buffer
	b.Grow(size)
	b.WriteString(head)
	b.Write(bytes.Repeat([]byte("x"), size-len(head)-len(tail)))
	b.WriteString(tail)
	return b.Bytes()
}

// drain runs the worker until it has handled all messages, and sends one for each that was handled
// until all are sent.
func (w memoryWork) drain(ctx context.Context, t testing.TB, messages, sent int, send func(n int)) (use memoryUse) {
	t.Helper()
	text, err := json.Marshal(w)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), memoryVariable+"="+string(text))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	for n := 0; n < messages && lines.Scan(); n++ {
		if sent < messages {
			send(1)
			sent++
		}
	}
	if err := stdin.Close(); err != nil {
		t.Error(err)
	}
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "{") {
			if err := json.Unmarshal(lines.Bytes(), &use); err != nil {
				t.Error(err)
			}
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if use.Handled < int64(messages) {
		t.Fatalf("%d of %d messages were handled", use.Handled, messages)
	}
	return use
}

// memoryDrivers are the drivers whose messages are not in the memory of the process anyway.
var memoryDrivers = []string{"sqlite", "postgres", "rabbitmq", "sqs", "servicebus"}

func largeMessages(t *testing.T) outcome {
	bound, total := int64(32<<20), int64(192<<20)
	drivers := []string{"postgres", "rabbitmq"}
	if faults() {
		bound, total, drivers = 256<<20, 2<<30, memoryDrivers
	}
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) {
			use := measureMemory(t, driver, bound, total)
			t.Logf("%s: bound %d MiB, live heap %d MiB, resident %d MiB", driver, bound>>20, use.Live>>20, use.RSS>>20)
			if most := uint64(bound + memoryBeside); use.Live > most {
				t.Errorf("the live heap was %d MiB, want at most %d", use.Live>>20, most>>20)
			}
		})
	}
	return outcome{message: "received when there is room", neighbours: "wait for room", normal: 0}
}

// BenchmarkLargeMessages shows the memory of a process that receives 2 GiB of the largest messages,
// without the race detector.
func BenchmarkLargeMessages(b *testing.B) {
	for _, driver := range memoryDrivers {
		b.Run(driver, func(b *testing.B) {
			for b.Loop() {
				const bound = 256 << 20
				use := measureMemory(b, driver, bound, 2<<30)
				b.ReportMetric(float64(use.Live)/(1<<20), "live-MiB")
				b.ReportMetric(float64(use.RSS)/(1<<20), "resident-MiB")
				if most := int64(2*bound + 200<<20); use.RSS > most {
					b.Errorf("%d MiB were resident, want at most %d", use.RSS>>20, most>>20)
				}
			}
		})
	}
}

// Package bench measures real endpoints on a transport.
package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/testbed"
	"github.com/holdfast-go/holdfast/transport"
)

// Work is the work of a handler.
type Work string

// The handler of Receive does nothing. The handler of Loop sends one message to another queue. The
// handler of Atomic sends one message and writes one row in the transaction of the outbox, if there
// is an outbox, and otherwise of the received message. The handler of Dual writes the row in a
// transaction of its own, and then sends: a crash in between loses the message. Send has no
// handler: many goroutines send.
const (
	Receive Work = "receive"
	Loop    Work = "loop"
	Atomic  Work = "atomic"
	Dual    Work = "dual"
	Send    Work = "send"
)

// Options are the endpoint and the load to measure.
type Options struct {
	Transport transport.Transport
	Outbox    transport.Transport // the database of the endpoint's outbox, or with Dual of the rows alone. May be nil
	Remember  time.Duration       // of the endpoint
	Work      Work
	Messages  int
	// Size is that of a body in bytes, and Headers the number of headers that every message has at
	// least.
	Size, Headers int
	Concurrency   int       // of the endpoint, or the number of goroutines that send
	Rate          float64   // messages sent a second while receiving; 0 sends all before the measurement
	Profile       io.Writer // receives a CPU profile of the measurement. May be nil
	Log           *slog.Logger
}

// Result is the measurement of a load.
type Result struct {
	Work        Work    `json:"work"`
	Messages    int     `json:"messages"`
	Size        int     `json:"size"`
	Headers     int     `json:"headers"` // of the messages sent last
	Concurrency int     `json:"concurrency"`
	Rate        float64 `json:"rate,omitempty"`

	Seconds           float64 `json:"seconds"`
	MessagesPerSecond float64 `json:"messages_per_second"`
	// Latencies are from receiving to completion; with a rate from sending to handling; of send,
	// the time of one send.
	P50               float64 `json:"p50_ms"`
	P95               float64 `json:"p95_ms"`
	P99               float64 `json:"p99_ms"`
	CPUPerMessage     float64 `json:"cpu_us_per_message"` // of this process
	AllocsPerMessage  float64 `json:"allocs_per_message"`
	BytesPerMessage   float64 `json:"alloc_bytes_per_message"`
	PeakRSS           int64   `json:"peak_rss_bytes"`  // of this process since it started
	CompletedTwice    int64   `json:"completed_twice"` // completions of messages that were completed before
	BusinessRowWrites int64   `json:"business_row_writes,omitempty"`
}

// businessRows is how many rows the handlers of the work atomic share.
const businessRows = 1000

// stallTime is the time without a completion after which a run fails.
const stallTime = time.Minute

// bench is one run.
type bench struct {
	Options
	in, out, errors string // queues
	prefix          string
	body            []byte
	order           order         // of body
	table           testbed.Table // of the works atomic and dual only
	write           write         // of the work dual only
	conn            transport.Conn
	database        transport.Conn // of the outbox; nil without one
	timeline        *timeline
	meter           meter
}

// write adds to the count of a row of a table in a transaction of its own.
type write func(ctx context.Context, table string, row int) error

// Run measures. It deletes the queues of the run, also when ctx ends. An error beside a result is
// one of the deletion.
func Run(ctx context.Context, opts Options) (res *Result, err error) {
	b, err := newBench(opts)
	if err != nil {
		return nil, err
	}
	// Without the name of an endpoint, for which a driver may create more queues.
	env := transport.Env{Logger: opts.Log, Instance: b.prefix}
	if b.conn, err = opts.Transport.Open(ctx, env); err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	defer func() {
		left := testbed.CleanUp(ctx, b.conn, b.table, b.prefix, b.in, b.out, b.errors)
		err = errors.Join(err, left, b.conn.Close())
		if b.database != nil {
			cleaned := testbed.CleanUp(ctx, b.database, nil, "", b.outbox(), b.inbox())
			err = errors.Join(err, cleaned, b.database.Close())
		}
	}()
	if opts.Work == Dual {
		end, err := b.openOwn(ctx)
		if err != nil {
			return nil, err
		}
		defer end()
	}
	if err := b.openOutbox(ctx); err != nil {
		return nil, err
	}
	if err := b.prepare(ctx); err != nil {
		return nil, err
	}
	if err := b.measure(ctx); err != nil {
		return nil, err
	}
	return b.result(ctx)
}

// newBench does no I/O.
func newBench(opts Options) (*bench, error) {
	prefix := fmt.Sprintf("holdfast-bench-%d-%x", os.Getpid(), time.Now().UnixNano()&0xffffff)
	b := &bench{
		Options: opts, prefix: prefix, in: prefix + "-in", out: prefix + "-out", errors: prefix + "-error",
		timeline: newTimeline(opts.Messages),
	}
	var err error
	if b.body, err = orderBody(opts.Size); err != nil {
		return nil, err
	}
	if opts.Work == Atomic || opts.Work == Dual {
		database := opts.Transport
		if opts.Outbox != nil {
			database = opts.Outbox
		}
		if opts.Work == Dual {
			b.Outbox = nil
		}
		if b.table = testbed.TableOf(database); b.table == nil {
			return nil, testbed.ErrNoTransactions
		}
	}
	return b, json.Unmarshal(b.body, &b.order)
}

// openOwn connects to the database of the rows, beside those of the transport. end closes the
// connections.
func (b *bench) openOwn(ctx context.Context) (end func(), err error) {
	adder, ok := b.table.(testbed.OwnAdder)
	if !ok {
		return nil, errors.New("the work dual needs rows on PostgreSQL: name the database by --outbox")
	}
	b.write, end, err = adder.OpenOwn(ctx, b.Concurrency)
	return end, err
}

// prepare creates and fills the queues.
func (b *bench) prepare(ctx context.Context) error {
	if b.table != nil {
		if err := b.table.Create(ctx, b.prefix, businessRows); err != nil {
			return fmt.Errorf("create the business rows: %w", err)
		}
	}
	installer, ok := b.conn.(transport.Installer)
	if !ok {
		return errors.New("the transport cannot create queues")
	}
	plan := transport.Plan{Queues: []transport.Queue{{Name: b.in}, {Name: b.out}, {Name: b.errors}}}
	if err := installer.Install(ctx, plan); err != nil {
		return err
	}
	if b.Work == Send || b.Rate > 0 {
		return nil
	}
	return b.preload(ctx)
}

// result compares the counts with the broker: a run that lost messages has no result.
func (b *bench) result(ctx context.Context) (*Result, error) {
	n, m := float64(b.Messages), &b.meter
	r := &Result{
		Work: b.Work, Messages: b.Messages, Size: len(b.body), Headers: int(b.timeline.headers.Load()),
		Concurrency: b.Concurrency, Rate: b.Rate,
		Seconds: m.elapsed.Seconds(), MessagesPerSecond: n / m.elapsed.Seconds(),
		CPUPerMessage:    float64(m.cpu.Nanoseconds()) / 1e3 / n,
		AllocsPerMessage: float64(m.allocs) / n, BytesPerMessage: float64(m.bytes) / n,
		PeakRSS: peakRSS(), CompletedTwice: b.timeline.again.Load(),
	}
	r.P50, r.P95, r.P99 = b.timeline.percentiles()
	if b.table != nil {
		counts, err := b.table.Counts(ctx, b.prefix)
		if err != nil {
			return nil, fmt.Errorf("read the business rows: %w", err)
		}
		for _, n := range counts {
			r.BusinessRowWrites += int64(n)
		}
		if r.BusinessRowWrites != int64(b.Messages) {
			return nil, fmt.Errorf("the business rows were written to %d times for %d messages", r.BusinessRowWrites, b.Messages)
		}
	}
	if b.Outbox != nil {
		if err := b.emptied(ctx); err != nil {
			return nil, err
		}
	}
	inspector, ok := b.conn.(transport.Inspector)
	if !ok || b.Work == Receive {
		return r, nil
	}
	stats, err := inspector.Inspect(ctx, b.out)
	if err != nil {
		return nil, err
	}
	if sent := stats[0].Ready; sent >= 0 && sent < int64(b.Messages) {
		return nil, fmt.Errorf("%d of %d sent messages arrived", sent, b.Messages)
	}
	return r, nil
}

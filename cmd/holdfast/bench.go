package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/bench"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/sqlitefile"
	"github.com/holdfast-go/holdfast/endpoint"
)

const benchHelp = `Measure a real endpoint on a transport: messages per second, latency, and the CPU time, allocations and
memory of this process per message.

  receive  the handler does nothing
  loop     the handler sends one message to another queue
  atomic   it sends one message and writes one row of a table, in one transaction
  dual     it writes one row in a transaction of its own, then sends one message: a crash between the two loses it
  send     nothing is received: many goroutines send

With --outbox the endpoint has an outbox in that database: the handler's message is stored there, with the row of
the work atomic, and sent to the transport afterwards. The measurement then lasts until all messages are sent.

The queues of a run are created, filled before the measurement, and deleted afterwards. The measurement lasts from the
start of receiving until the last message is completed. With --rate, messages are sent at that rate while the endpoint
receives.

Latency is from receiving a message to its completion; with --rate, from sending it to its handler; with the work send,
the time of one send.`

const benchExample = `  holdfast bench --transport memory: --work loop
  holdfast bench --transport sqlite:bench.db --work atomic --messages 5000 --concurrency 8
  holdfast bench --transport amqp://guest:guest@localhost --work loop --concurrency 32 --json
  holdfast bench --transport amqp://guest:guest@localhost --outbox postgres://localhost/test --work atomic
  holdfast bench --transport postgres://localhost/test --work receive --rate 5 --messages 100`

// benching holds the flags of bench.
type benching struct {
	bench.Options
	inbox   bool
	profile string
	asJSON  bool
}

// benchReport is a result with its transport.
type benchReport struct {
	Transport string `json:"transport"`
	Outbox    string `json:"outbox,omitempty"`
	Inbox     bool   `json:"inbox,omitempty"`
	*bench.Result
}

// labCommands are the demonstration and the commands that measure and torture.
type labCommands struct{ *app }

func (a *labCommands) benchCommand() *cobra.Command {
	var b benching
	cmd := &cobra.Command{
		Use:     "bench --work receive|send|loop|atomic|dual",
		Short:   "Measure endpoints on a transport",
		Long:    benchHelp,
		Example: benchExample,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.bench(cmd.Context(), &b) },
	}
	flags := cmd.Flags()
	flags.StringVar((*string)(&b.Work), "work", "loop", "the work to measure: receive, send, loop, atomic or dual")
	flags.IntVar(&b.Messages, "messages", 20_000, "how many messages")
	flags.IntVar(&b.Size, "size", 200, "`bytes` of a body, about")
	flags.IntVar(&b.Headers, "headers", 14, "how many headers a message has at least")
	flags.IntVar(&b.Concurrency, "concurrency", 32, "messages handled at once, or goroutines that send")
	flags.Float64Var(&b.Rate, "rate", 0, "send so many messages a second while receiving")
	a.databaseFlag(cmd, "outbox", "the database of an outbox, by its `URL`; for receive, loop and atomic; for dual the database of the row")
	flags.BoolVar(&b.inbox, "inbox", true, "with --outbox, record handled messages to recognize duplicates")
	flags.StringVar(&b.profile, "profile", "", "write a CPU profile of the measurement to this `file`")
	flags.BoolVar(&b.asJSON, "json", false, "print JSON")
	return cmd
}

func (a *labCommands) bench(ctx context.Context, b *benching) error {
	if err := b.check(); err != nil {
		return err
	}
	t, err := a.target()
	if err != nil {
		return err
	}
	openTransactions(t.Transport, b.Concurrency)
	b.Transport, b.Log = t.Transport, a.log
	outbox, err := a.outbox()
	if err != nil {
		return err
	}
	databases := []string{file(t.Transport)}
	if outbox != nil {
		if b.Work == bench.Send {
			return usagef("--outbox is for works that receive")
		}
		openTransactions(outbox.Transport, b.Concurrency)
		b.Outbox = outbox.Transport
		if !b.inbox {
			b.Remember = endpoint.None
		}
		databases = append(databases, file(outbox.Transport))
	}
	result, err := b.run(ctx, databases)
	if err != nil {
		err = fmt.Errorf("bench %s: %w", b.Work, err)
	}
	if result == nil {
		return err
	}
	report := benchReport{Transport: a.secretless(a.transportURL()), Result: result}
	if outbox != nil && b.Work != bench.Dual {
		report.Outbox, report.Inbox = a.secretless(a.databaseURL()), b.inbox
	}
	return errors.Join(err, a.printBench(report, b.asJSON))
}

// run measures, and keeps no file but the profile. The files are those of the databases.
func (b *benching) run(ctx context.Context, files []string) (result *bench.Result, err error) {
	for _, f := range files {
		remove := removeIfNew(f)
		defer func() { err = errors.Join(err, remove()) }()
	}
	if b.profile != "" {
		f, err := os.Create(b.profile)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		b.Profile = f
	}
	return bench.Run(ctx, b.Options)
}

func (b *benching) check() error {
	switch {
	case !slices.Contains([]bench.Work{bench.Receive, bench.Send, bench.Loop, bench.Atomic, bench.Dual}, b.Work):
		return usagef("--work %q: want receive, send, loop, atomic or dual", b.Work)
	case b.Messages < 1 || b.Concurrency < 1:
		return usagef("--messages and --concurrency must be at least 1")
	case b.Headers < 0 || b.Rate < 0:
		return usagef("--headers and --rate must not be negative")
	case b.Rate > 0 && b.Work == bench.Send:
		return usagef("--rate is for works that receive")
	}
	return nil
}

// removeIfNew returns a function that deletes the SQLite file at path, unless it exists already.
func removeIfNew(path string) func() error {
	if _, err := os.Stat(path); path == "" || !errors.Is(err, fs.ErrNotExist) {
		return func() error { return nil }
	}
	return func() error { return sqlitefile.Remove(path) }
}

func (a *labCommands) printBench(r benchReport, asJSON bool) error {
	return a.show(asJSON, r, func(w io.Writer) {
		row := func(name, format string, args ...any) { fmt.Fprintf(w, name+"\t"+format+"\n", args...) }
		row("transport", "%s", strings.TrimSpace(r.Transport))
		if r.Outbox != "" {
			inbox := "with an inbox"
			if !r.Inbox {
				inbox = "without an inbox"
			}
			row("outbox", "%s, %s", strings.TrimSpace(r.Outbox), inbox)
		}
		row("work", "%s: %d messages of %d bytes and %d headers, concurrency %d",
			r.Work, r.Messages, r.Size, r.Headers, r.Concurrency)
		row("messages per second", "%.0f in %.2f s", r.MessagesPerSecond, r.Seconds)
		row("latency", "p50 %.2f ms, p95 %.2f ms, p99 %.2f ms", r.P50, r.P95, r.P99)
		row("CPU per message", "%.1f µs", r.CPUPerMessage)
		row("allocations per message", "%.1f (%.0f bytes)", r.AllocsPerMessage, r.BytesPerMessage)
		row("peak memory", "%.1f MiB", float64(r.PeakRSS)/(1<<20))
		if r.CompletedTwice > 0 {
			row("completed twice", "%d", r.CompletedTwice)
		}
	})
}

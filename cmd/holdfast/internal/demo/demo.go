// Package demo is a small shop for the command holdfast demo. Orders come from a file and go
// through three endpoints. A ledger beside the queues proves that no order was lost or handled
// twice.
package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/sync/errgroup"
	"golang.org/x/term"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/sqlitefile"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/testbed"
	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

// Options are the flags of the command.
type Options struct {
	Input string        // the file with the orders
	Limit int           // the number of its lines that count; 0 is all
	Path  string        // the file with the queues and the ledger; "" keeps both in memory
	Work  time.Duration // how long a handler waits before it handles a message
	Out   io.Writer     // of the report
	Log   *slog.Logger  // of the endpoints
}

// lease is short: after a kill, messages in flight come back within this time.
const lease = 3 * time.Second

var (
	errNothing    = errors.New("the demo has not been run here yet")
	errUnproven   = errors.New("the totals do not add up against the input")
	errUnfinished = errors.New("not all orders have been handled: run it again to go on")
)

// demo is one call of Run, Verify or Reset.
type demo struct {
	Options
	input     *Input
	ledger    *ledger
	transport transport.Transport
	conn      transport.Conn // to count messages and to send the orders
	before    counts         // of earlier runs
}

// open reads the input, opens the ledger and the queues, and calls f. Between the two it checks the
// ledger.
func open(
	ctx context.Context, opts Options,
	check func(*ledger, context.Context, *Input) error, f func(*demo) error,
) (err error) {
	d := &demo{Options: opts, transport: &inmemory.Transport{}}
	if opts.Path != "" {
		d.transport = &sqlite.Transport{Path: opts.Path, Lease: lease}
	}
	if d.input, err = ReadInput(opts.Input, opts.Limit); err != nil {
		return err
	}
	if d.ledger, err = openLedger(opts.Path); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.ledger.db.Close()) }()
	if err := check(d.ledger, ctx, d.input); err != nil {
		return err
	}
	if d.before, err = d.ledger.counts(ctx); err != nil {
		return err
	}
	if d.conn, err = d.transport.Open(ctx, transport.Env{}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.conn.Close()) }()
	return f(d)
}

// Run sends the orders and handles them until each is finished, going on where an earlier run was
// stopped. Then it verifies the totals.
func Run(ctx context.Context, opts Options) error {
	return open(ctx, opts, (*ledger).begin, func(d *demo) error {
		d.introduce()
		start := time.Now()
		if d.before.done() {
			fmt.Fprintf(d.Out, "All orders have been handled by earlier runs. To start over: --reset\n\n")
		} else if err := d.process(ctx); err != nil {
			return err
		}
		now, err := d.ledger.counts(ctx)
		if err != nil {
			return err
		}
		if err := d.report(now, time.Since(start)); err != nil {
			return err
		}
		return d.verify(context.WithoutCancel(ctx), now)
	})
}

// Verify proves that the totals of earlier runs add up against the input.
func Verify(ctx context.Context, opts Options) error {
	if _, err := os.Stat(opts.Path); err != nil { // opening it would create it
		return fmt.Errorf("%w: %w", errNothing, err)
	}
	return open(ctx, opts, (*ledger).match, func(d *demo) error { return d.verify(ctx, d.before) })
}

// Reset deletes the file of an earlier demo. Reset returns an error if the file has other
// queues, or is no database.
func Reset(ctx context.Context, opts Options) error {
	if _, err := os.Stat(opts.Path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	foreign := func(why error) error {
		return fmt.Errorf("%s is not the demo's: remove it yourself, or use another file: %w", opts.Path, why)
	}
	ofDemo := func(l *ledger, ctx context.Context, _ *Input) error {
		if err := l.match(ctx, nil); err != nil {
			return foreign(err)
		}
		return nil
	}
	err := open(ctx, opts, ofDemo, func(d *demo) error {
		stats, err := d.conn.(transport.Inspector).Inspect(ctx) //nolint:errcheck // SQLite can
		for _, q := range stats {
			name := strings.TrimSuffix(strings.TrimSuffix(q.Name, ".quarantine"), ".outbox") // timers wait in the second
			if !slices.Contains(append(handling, errorQueue), name) {
				return foreign(fmt.Errorf("it holds the queue %q", q.Name))
			}
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	return sqlitefile.Remove(opts.Path)
}

// introduce describes the run.
func (d *demo) introduce() {
	malformed := d.input.malformed()
	fmt.Fprintf(d.Out, "%d orders from %s, %d of them malformed; queues in %s.\n",
		d.before.lines, d.input.Name, len(malformed), cmp.Or(d.Path, "memory"))
	if d.before.imported == 0 {
		for _, text := range malformed {
			fmt.Fprintln(d.Out, "  ", text)
		}
	}
	fmt.Fprintf(d.Out, `sales validates each order and publishes it to billing and shipping; a message takes %v.
What fails is retried %d times at once, then after %v, then after %v more, then moved to the
queue %q. These delays are the demo's own: the defaults are 10, 20 and 30 s. Malformed
lines are moved at once.
`, d.Work, retries.Immediate, retries.Delays.Delay, 2*retries.Delays.Delay, errorQueue)
	if d.before.imported > 0 {
		fmt.Fprintf(d.Out, `Going on after an earlier run: %d of %d orders are finished. What a killed run was
handling comes back within %v; a delivery that was lost so counts as a retry.
`, d.before.finished(), d.before.lines, lease)
	}
	fmt.Fprintln(d.Out)
}

// process runs the endpoints until each order is finished or ctx ends. They are started subscribers
// first, so that no event is lost; then the orders are sent, unless an earlier run has imported
// them.
func (d *demo) process(ctx context.Context) error {
	running, stop := context.WithCancel(ctx)
	defer stop()
	group, running := errgroup.WithContext(running)
	run := func() error {
		for _, cfg := range []endpoint.Config{d.subscriber(billing), d.subscriber(shipping), d.sales()} {
			if _, err := testbed.Launch(running, group, cfg); err != nil {
				return err
			}
		}
		if err := d.importLines(running); err != nil {
			return err
		}
		return d.watch(running)
	}
	err := run()
	stop()
	return cmp.Or(group.Wait(), err) // that of the group is the cause of the other
}

// watch shows the progress until each order is finished or ctx ends: a bar on a terminal, a line a
// second elsewhere.
func (d *demo) watch(ctx context.Context) error {
	var bar *progressbar.ProgressBar
	if f, ok := d.Out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		bar = progressbar.NewOptions(len(d.input.Lines), progressbar.OptionSetWriter(f), progressbar.OptionFullWidth(),
			progressbar.OptionSetPredictTime(false), progressbar.OptionSetElapsedTime(false))
		defer fmt.Fprintln(f)
	}
	for start, shown := time.Now(), 0; ; {
		now, err := d.ledger.counts(ctx)
		if err != nil {
			return err
		}
		seconds := int(time.Since(start) / time.Second)
		switch {
		case bar != nil:
			bar.Describe(now.String())
			_ = bar.Set(now.finished()) // fails past its end only
		case seconds > shown:
			shown = seconds
			fmt.Fprintf(d.Out, "%3ds  finished %d of %d  sent %d  %v\n", seconds, now.finished(), now.lines, now.imported, now)
		}
		if now.done() || backoff.Sleep(ctx, 100*time.Millisecond) != nil {
			return nil
		}
	}
}

// report writes the closing table: all that was done on this file, and the rate of this run.
func (d *demo) report(now counts, elapsed time.Duration) error {
	w := tabwriter.NewWriter(d.Out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "endpoint\tprocessed\tretried at once\tdelayed\tmoved to error\t")
	row := func(name string, c count) {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t\n", name, c.processed, c.retried, c.delayed, c.failed)
	}
	for _, name := range handling {
		row(name, now.by[name])
	}
	row("total", now.total)
	if err := w.Flush(); err != nil {
		return err
	}
	earlier := d.before.total.settled()
	if handled := now.total.settled() - earlier; handled > 0 {
		fmt.Fprintf(d.Out, "This run: %d messages in %.1f s, %.0f messages per second", handled,
			elapsed.Seconds(), float64(handled)/elapsed.Seconds())
		if earlier > 0 {
			fmt.Fprintf(d.Out, "; earlier runs: %d messages", earlier)
		}
		fmt.Fprintln(d.Out, ".")
	}
	return nil
}

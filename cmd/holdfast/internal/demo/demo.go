// Package demo is a small shop for the command holdfast demo. Orders come from a file and go through three endpoints.
// A ledger beside the queues proves that no order was lost or handled twice.
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
	"github.com/holdfast-go/holdfast/endpoint"
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

// Errors of Run and Verify.
var (
	ErrInterrupted = errors.New("interrupted: run it again to go on")
	ErrUnproven    = errors.New("the totals do not add up against the input")
	ErrUnfinished  = errors.New("not all orders have been handled: run the demo again to go on")
)

// demo is one call of Run or Verify.
type demo struct {
	Options
	input     *Input
	transport transport.Transport
	ledger    *ledger
}

// open reads the input, opens the ledger and calls f with both.
func open(opts Options, f func(*demo) error) (err error) {
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
	return f(d)
}

// connect calls f with a connection to the queues.
func (d *demo) connect(ctx context.Context, f func(transport.Conn) error) error {
	conn, err := d.transport.Open(ctx, transport.Env{})
	if err != nil {
		return err
	}
	return errors.Join(f(conn), conn.Close())
}

// depths returns the depths of all queues.
func (d *demo) depths(ctx context.Context) (depths []transport.QueueStats, err error) {
	err = d.connect(ctx, func(conn transport.Conn) (err error) {
		depths, err = conn.(transport.Inspector).Inspect(ctx) //nolint:errcheck // both transports can
		return err
	})
	return depths, err
}

// Run sends the orders and handles them until each is finished, going on where an earlier run was stopped. Then it
// verifies the totals.
func Run(ctx context.Context, opts Options) error {
	return open(opts, func(d *demo) error {
		if err := d.ledger.begin(ctx, d.input); err != nil {
			return err
		}
		before, err := d.ledger.counts(ctx, len(d.input.Lines))
		if err != nil {
			return err
		}
		d.introduce(before)
		if before.done() {
			fmt.Fprintf(d.Out, "All orders have been handled by earlier runs. To start over: --reset\n\n")
			err = report(d.Out, before, before, 0)
		} else {
			err = d.process(ctx, before)
		}
		if err != nil {
			return err
		}
		return d.verify(ctx)
	})
}

// Verify proves that the totals of earlier runs add up against the input.
func Verify(ctx context.Context, opts Options) error {
	if _, err := os.Stat(opts.Path); err != nil { // opening it would create it
		return fmt.Errorf("%w: %w", errNothing, err)
	}
	return open(opts, func(d *demo) error {
		if err := d.ledger.match(ctx, d.input); err != nil {
			return err
		}
		return d.verify(ctx)
	})
}

// Reset deletes the file of an earlier demo. It refuses one that holds anything else, or is no database.
func Reset(ctx context.Context, path string) error {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	l, err := openLedger(path)
	if err != nil {
		return err
	}
	if err := errors.Join(l.match(ctx, nil), l.db.Close()); err != nil {
		return fmt.Errorf("reset: %s is not the demo's: remove it yourself, or use another file: %w", path, err)
	}
	stats, err := (&demo{transport: &sqlite.Transport{Path: path}}).depths(ctx)
	if err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	for _, q := range stats { // import is of an earlier version
		if !slices.Contains(append(handling, errorQueue, "import"), strings.TrimSuffix(q.Name, ".quarantine")) {
			return fmt.Errorf("reset: %s holds the queue %q, which is not the demo's: remove it yourself", path, q.Name)
		}
	}
	return sqlitefile.Remove(path)
}

// introduce describes the run.
func (d *demo) introduce(before counts) {
	malformed := d.input.malformed()
	fmt.Fprintf(d.Out, "%d orders from %s, %d of them malformed; queues in %s.\n",
		len(d.input.Lines), d.input.Name, len(malformed), cmp.Or(d.Path, "memory"))
	if before.imported == 0 {
		for _, text := range malformed {
			fmt.Fprintln(d.Out, "  ", text)
		}
	}
	fmt.Fprintf(d.Out, `sales validates each order and publishes it to billing and shipping; a message takes %v.
What fails is retried %d times at once, then after %v, then after %v more, then moved to the
queue %q. These delays are the demo's own: the defaults are 10, 20 and 30 s. Malformed
lines are moved at once.
`, d.Work, retries.Immediate, retries.Delays.Delay, 2*retries.Delays.Delay, errorQueue)
	if before.imported > 0 {
		fmt.Fprintf(d.Out, `Going on after an earlier run: %d of %d orders are finished. What a killed run was
handling comes back within %v; a delivery that was lost so counts as a retry.
`, before.finished(), before.lines, lease)
	}
	fmt.Fprintln(d.Out)
}

// process runs the endpoints until each order is finished or ctx ends.
func (d *demo) process(ctx context.Context, before counts) error {
	start := time.Now()
	running, stop := context.WithCancel(ctx)
	defer stop()
	group, running := errgroup.WithContext(running)
	err := d.start(running, group)
	if err == nil {
		err = d.watch(running)
	}
	stop()
	if err := cmp.Or(group.Wait(), err); err != nil { // that of the group is the cause of the other
		return err
	}
	after, err := d.ledger.counts(ctx, before.lines)
	if err == nil {
		err = report(d.Out, before, after, time.Since(start))
	}
	if err == nil && !after.done() {
		err = ErrInterrupted
	}
	return err
}

// start starts the endpoints, subscribers first so that no event is lost, and imports the lines unless an earlier run
// did.
func (d *demo) start(ctx context.Context, group *errgroup.Group) error {
	for _, cfg := range []endpoint.Config{d.subscriber(billing), d.subscriber(shipping), d.sales()} {
		e, err := endpoint.New(cfg)
		if err != nil {
			return err
		}
		group.Go(func() error { return e.Run(ctx) })
		if err := e.WaitReady(ctx); err != nil {
			return err
		}
	}
	if now, err := d.ledger.counts(ctx, 0); err != nil || now.imported > 0 {
		return err
	}
	return d.importLines(ctx)
}

// watch shows the progress until each order is finished or ctx ends: a bar on a terminal, a line a second elsewhere.
func (d *demo) watch(ctx context.Context) error {
	var bar *progressbar.ProgressBar
	if f, ok := d.Out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		bar = progressbar.NewOptions(len(d.input.Lines), progressbar.OptionSetWriter(f), progressbar.OptionFullWidth(),
			progressbar.OptionSetPredictTime(false), progressbar.OptionSetElapsedTime(false))
		defer fmt.Fprintln(f)
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for start, shown := time.Now(), 0; ; {
		now, err := d.ledger.counts(ctx, len(d.input.Lines))
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
		if now.done() || ctx.Err() != nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// String fits into a terminal's line together with a short bar.
func (c counts) String() string {
	sum := c.total()
	return fmt.Sprintf("sales %d billing %d shipping %d retried %d delayed %d error %d",
		c.by[sales].settled(), c.by[billing].settled(), c.by[shipping].settled(), sum.retried, sum.delayed, sum.failed)
}

// report writes the closing table: all that was done on this file, and the rate of this run.
func report(out io.Writer, before, after counts, elapsed time.Duration) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "endpoint\tprocessed\tretried at once\tdelayed\tmoved to error\t")
	row := func(name string, c count) {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t\n", name, c.processed, c.retried, c.delayed, c.failed)
	}
	for _, name := range handling {
		row(name, after.by[name])
	}
	row("total", after.total())
	err := w.Flush()
	earlier := before.total().settled()
	if handled := after.total().settled() - earlier; handled > 0 {
		fmt.Fprintf(out, "This run: %d messages in %.1f s, %.0f messages per second", handled,
			elapsed.Seconds(), float64(handled)/elapsed.Seconds())
		if earlier > 0 {
			fmt.Fprintf(out, "; earlier runs: %d messages", earlier)
		}
		fmt.Fprintln(out, ".")
	}
	return err
}

package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

// Options are what the command line says.
type Options struct {
	// Input is the file with the orders, and Limit how many of its lines count; 0 is all.
	Input string
	Limit int
	// Path is the file with the queues and the ledger; "" keeps both in memory.
	Path string
	// Work is how long each handler pretends to work on a message.
	Work time.Duration
	// Out takes what is shown, Log the endpoints' log.
	Out io.Writer
	Log *slog.Logger
}

// lease is short so that somebody who has killed the demo need not wait long for
// the messages that it was handling.
const lease = 3 * time.Second

// Errors of Run and Verify.
var (
	// ErrInterrupted is returned when ctx ended before all orders were handled.
	ErrInterrupted = errors.New("interrupted: run it again to go on")
	// ErrUnproven is returned when the totals do not add up.
	ErrUnproven = errors.New("the totals do not add up against the input")
	// ErrUnfinished is returned by Verify when there is still something to do.
	ErrUnfinished = errors.New("not all orders have been handled: run the demo again to go on")
)

// demo is one call of Run or Verify.
type demo struct {
	Options
	input     *Input
	transport transport.Transport
	ledger    *ledger
}

// open reads the input and opens the ledger, which must be about the same input or new.
func open(ctx context.Context, opts Options) (*demo, error) {
	in, err := ReadInput(opts.Input, opts.Limit)
	if err != nil {
		return nil, err
	}
	d := &demo{Options: opts, input: in, transport: &inmemory.Transport{}}
	if opts.Path != "" {
		d.transport = &sqlite.Transport{Path: opts.Path, Lease: lease}
	}
	if d.ledger, err = openLedger(opts.Path); err != nil {
		return nil, err
	}
	if err := d.match(ctx); err != nil {
		return nil, errors.Join(err, d.ledger.close())
	}
	return d, nil
}

// match fails when the ledger is about other orders.
func (d *demo) match(ctx context.Context) error {
	last, err := d.ledger.lastRun(ctx)
	switch {
	case errors.Is(err, errNothing) || err == nil && last.hash == d.input.Hash:
		return nil
	case err == nil:
		return fmt.Errorf("%s is about other orders (%d lines of %s): start over with --reset, or use another file by --transport",
			d.Path, last.lines, last.name)
	}
	return fmt.Errorf("read the ledger: %w", err)
}

// Run sends the orders and handles them until all have come to an end, going on where
// an earlier run was stopped. Then it verifies the totals.
func Run(ctx context.Context, opts Options) (err error) {
	d, err := open(ctx, opts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.ledger.close()) }()
	if err := d.ledger.begin(ctx, d.input); err != nil {
		return err
	}
	before, err := d.ledger.tally(ctx, len(d.input.Lines))
	if err != nil {
		return err
	}
	d.introduce(before)
	if before.done() {
		fmt.Fprintf(d.Out, "All orders have been handled by earlier runs. To start over: --reset\n\n")
		return errors.Join(report(d.Out, before, before, 0), d.verify(ctx))
	}
	if err := d.process(ctx, before); err != nil {
		return err
	}
	return d.verify(ctx)
}

// introduce tells what is going to happen.
func (d *demo) introduce(before tally) {
	place := "memory"
	if d.Path != "" {
		place = d.Path
	}
	malformed := d.input.malformed()
	fmt.Fprintf(d.Out, "%d orders from %s, %d of them malformed; queues in %s.\n",
		len(d.input.Lines), d.input.Name, len(malformed), place)
	if before.imported == 0 {
		for _, text := range malformed {
			fmt.Fprintln(d.Out, "  ", text)
		}
	}
	fmt.Fprintf(d.Out, `sales validates each order and publishes it to billing and shipping; a message takes %v.
What fails is retried %d times at once, then after %v, then after %v more, then moved to the
queue %q. These delays are the demo's own: the defaults are 10, 20 and 30 s. Malformed
lines are moved at once.
`, d.Work, retries.Immediate, retries.TimeIncrease, 2*retries.TimeIncrease, errorQueue)
	if before.imported > 0 {
		fmt.Fprintf(d.Out, "Going on after an earlier run: %d of %d orders are finished. What a killed run was\nhandling comes back within %v; a hand-out that was lost so counts as a retry.\n",
			before.finished(), before.lines, lease)
	}
	fmt.Fprintln(d.Out)
}

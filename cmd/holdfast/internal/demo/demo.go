package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-go/holdfast/endpoint"
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

// Verify proves that the totals of earlier runs add up against the input.
func Verify(ctx context.Context, opts Options) (err error) {
	if _, err := os.Stat(opts.Path); err != nil { // opening it would make an empty one
		return fmt.Errorf("%w: %w", errNothing, err)
	}
	d, err := open(ctx, opts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.ledger.close()) }()
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
		fmt.Fprintf(d.Out, "Going on after an earlier run: %d of %d orders are finished. What a killed one was handling\ncomes back within %v.\n",
			before.finished(), before.lines, lease)
	}
	fmt.Fprintln(d.Out)
}

// process runs the endpoints until all orders have come to an end.
func (d *demo) process(ctx context.Context, before tally) error {
	start := time.Now()
	running, stop := context.WithCancel(ctx)
	defer stop()
	group, running := errgroup.WithContext(running)
	if err := d.start(running, group); err != nil {
		stop()
		if cause := group.Wait(); cause != nil {
			return cause
		}
		return err
	}
	after, err := d.watch(running)
	stop()
	if err := errors.Join(group.Wait(), err); err != nil {
		return err
	}
	interrupted := !after.done()
	if interrupted { // handlers that were running have finished meanwhile
		if after, err = d.ledger.tally(context.WithoutCancel(ctx), len(d.input.Lines)); err != nil {
			return err
		}
	}
	if err := report(d.Out, before, after, time.Since(start)); err != nil {
		return err
	}
	if interrupted && !after.done() {
		return ErrInterrupted
	}
	return nil
}

// start starts the endpoints, subscribers first, so that no event is published before somebody
// listens; and, if nobody has before, the import.
func (d *demo) start(ctx context.Context, group *errgroup.Group) error {
	s := &shop{input: d.input, ledger: d.ledger, transport: d.transport, work: d.Work, log: d.Log}
	if d.Path != "" {
		s.mode = endpoint.SendsAtomicWithReceive
	}
	for _, name := range []string{billing, shipping} {
		if _, err := runEndpoint(ctx, group, func() (*endpoint.Endpoint, error) { return s.subscriber(name) }); err != nil {
			return err
		}
	}
	if _, err := runEndpoint(ctx, group, s.sales); err != nil {
		return err
	}
	importer, err := runEndpoint(ctx, group, s.importer)
	if err != nil {
		return err
	}
	if begun, err := d.ledger.imported(ctx, 0); err != nil || begun {
		return err
	}
	return importer.Send(ctx, ImportLines{First: 0})
}

// runEndpoint makes an endpoint and runs it in group until ctx ends; it returns when it is ready.
func runEndpoint(ctx context.Context, group *errgroup.Group, make func() (*endpoint.Endpoint, error)) (*endpoint.Endpoint, error) {
	e, err := make()
	if err != nil {
		return nil, err
	}
	group.Go(func() error { return e.Run(ctx) })
	select {
	case <-e.Ready():
		return e, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// watch shows the progress until all is done or ctx ends. It returns what is done by then.
func (d *demo) watch(ctx context.Context) (tally, error) {
	const often = 100 * time.Millisecond
	p := newProgress(d.Out, len(d.input.Lines))
	tick := time.NewTicker(often)
	defer tick.Stop()
	for {
		now, err := d.ledger.tally(context.WithoutCancel(ctx), len(d.input.Lines))
		if err != nil {
			return now, err
		}
		p.show(now)
		if now.done() || ctx.Err() != nil {
			p.end(now)
			return now, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// verify holds the ledger and the queues against the input and shows the result.
func (d *demo) verify(ctx context.Context) error {
	if _, err := d.ledger.lastRun(ctx); err != nil {
		return err
	}
	now, err := d.ledger.tally(ctx, len(d.input.Lines))
	if err != nil {
		return err
	}
	stats, err := d.inspect(ctx)
	if err != nil {
		return err
	}
	if !now.done() && (now.imported == 0 || pending(stats) > 0) {
		fmt.Fprintf(d.Out, "%d of %d orders are finished; %d messages are on their way.\n", now.finished(), now.lines, pending(stats))
		return ErrUnfinished
	}
	entries, err := d.ledger.entries(ctx)
	if err != nil {
		return err
	}
	p := prove(d.input, entries)
	p.queues(stats, now.total().failed)
	if err := p.print(d.Out); err != nil {
		return err
	}
	if len(p.wrong) > 0 {
		return ErrUnproven
	}
	fmt.Fprintf(d.Out, "Verified: each of %d lines has exactly one ending, the amounts add up, and the queues hold nothing but %d messages in %q.\n",
		now.lines, now.total().failed, errorQueue)
	return nil
}

// pending is how many messages wait to be handled.
func pending(stats []transport.QueueStats) (n int64) {
	for _, q := range stats {
		if q.Name != errorQueue {
			n += q.Ready + q.Unsettled + q.Delayed
		}
	}
	return n
}

// inspect looks at the queues.
func (d *demo) inspect(ctx context.Context) ([]transport.QueueStats, error) {
	conn, err := d.transport.Open(ctx, transport.Env{Logger: d.Log})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return conn.(transport.Inspector).Inspect(ctx)
}

package demo

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/holdfast-go/holdfast/transport"
)

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

// verify holds the ledger and the queues against the input and shows the result.
func (d *demo) verify(ctx context.Context) error {
	if _, err := d.ledger.lastRun(ctx); err != nil {
		return err
	}
	now, err := d.ledger.tally(ctx, len(d.input.Lines))
	if err != nil {
		return err
	}
	stats, err := inspect(ctx, d.transport)
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

// inspect looks at all queues of a transport.
func inspect(ctx context.Context, t transport.Transport) (stats []transport.QueueStats, err error) {
	conn, err := t.Open(ctx, transport.Env{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	inspector, ok := conn.(transport.Inspector)
	if !ok {
		return nil, errors.New("the transport cannot look at its queues")
	}
	return inspector.Inspect(ctx)
}

// entries reads all of the ledger.
func (l *ledger) entries(ctx context.Context) ([]entry, error) {
	rows, err := l.db.QueryContext(ctx, `select line, endpoint, outcome, retries, currency, amount, reason from demo_outcome`)
	if err != nil {
		return nil, fmt.Errorf("read the ledger: %w", err)
	}
	defer rows.Close()
	var found []entry
	for rows.Next() {
		var e entry
		if err := rows.Scan(&e.line, &e.endpoint, &e.outcome, &e.retries, &e.currency, &e.amount, &e.reason); err != nil {
			return nil, fmt.Errorf("read the ledger: %w", err)
		}
		found = append(found, e)
	}
	return found, rows.Err()
}

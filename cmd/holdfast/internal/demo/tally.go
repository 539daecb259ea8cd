package demo

import (
	"context"
	"fmt"
)

// count is what one endpoint has done so far.
type count struct {
	processed, failed int // messages that left for good
	delayed           int // delayed retries
	retried           int // immediate retries
}

// settled is how many messages left for good.
func (c count) settled() int { return c.processed + c.failed }

// tally is what all have done so far, over every run of the demo on this file.
type tally struct {
	lines    int // of the input
	imported int // lines sent to sales
	by       map[string]count
}

// finished is how many orders have come to their end everywhere, or nearly: what
// billing and shipping have not both done is taken to be the same orders.
func (t tally) finished() int {
	return t.by[sales].failed + min(t.by[billing].settled(), t.by[shipping].settled())
}

// done tells whether every order has come to its end.
func (t tally) done() bool {
	accepted := t.by[sales].processed
	return t.by[sales].settled() >= t.lines &&
		t.by[billing].settled() >= accepted && t.by[shipping].settled() >= accepted
}

// total adds the endpoints up.
func (t tally) total() count {
	var sum count
	for _, c := range t.by {
		sum.processed += c.processed
		sum.failed += c.failed
		sum.delayed += c.delayed
		sum.retried += c.retried
	}
	return sum
}

// tally reads the ledger.
func (l *ledger) tally(ctx context.Context, lines int) (tally, error) {
	t := tally{lines: lines, by: map[string]count{}}
	err := l.db.QueryRowContext(ctx, `select coalesce(sum(lines), 0) from demo_import`).Scan(&t.imported)
	if err != nil {
		return t, fmt.Errorf("read the ledger: %w", err)
	}
	rows, err := l.db.QueryContext(ctx, `select endpoint, outcome, count(*), sum(retries) from demo_outcome group by endpoint, outcome`)
	if err != nil {
		return t, fmt.Errorf("read the ledger: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var endpoint, outcome string
		var n, retried int
		if err := rows.Scan(&endpoint, &outcome, &n, &retried); err != nil {
			return t, fmt.Errorf("read the ledger: %w", err)
		}
		c := t.by[endpoint]
		c.retried += retried
		switch outcome {
		case processed:
			c.processed = n
		case delayed:
			c.delayed = n
		case failed:
			c.failed = n
		}
		t.by[endpoint] = c
	}
	return t, rows.Err()
}

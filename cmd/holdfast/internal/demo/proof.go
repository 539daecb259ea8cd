package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/holdfast-go/holdfast/transport"
)

// Errors of Verify, and of Run, which verifies in the end.
var (
	ErrUnproven   = errors.New("the totals do not add up against the input")
	ErrUnfinished = errors.New("not all orders have been handled: run the demo again to go on")
)

// endings are the final states of an order. Each line of the input has exactly one.
var endings = [...]string{
	"charged and shipped", "shipped, but not charged", "charged, but not shipped", "neither charged nor shipped",
	"rejected by sales",
}

const rejected = len(endings) - 1

// sums are amounts by currency, and the number of orders under "".
type sums map[string]Amount

func (s sums) String() string {
	var parts []string
	for _, currency := range slices.Sorted(maps.Keys(s)) {
		if currency != "" {
			parts = append(parts, s[currency].String()+" "+currency)
		}
	}
	return strings.Join(parts, ", ")
}

// proof compares the input with the ledger.
type proof struct {
	want, got [len(endings)]sums
	wrong     []string
}

func (p *proof) complain(format string, args ...any) {
	p.wrong = append(p.wrong, fmt.Sprintf(format, args...))
}

// prove compares the outcomes that follow from the input with the entries of each line.
func prove(in *Input, entries map[int][]entry) *proof {
	p, byLine := &proof{}, maps.Clone(entries)
	for i := range endings {
		p.want[i], p.got[i] = sums{}, sums{}
	}
	for _, line := range in.Lines {
		p.line(line, byLine[line.No])
		delete(byLine, line.No)
	}
	for _, no := range slices.Sorted(maps.Keys(byLine)) {
		p.complain("line %d: the ledger has it, the input has not", no)
	}
	for i, name := range endings {
		if want, got := p.want[i], p.got[i]; !maps.Equal(want, got) {
			p.complain("%s: %d orders of %v, but the input makes %d of %v", name, got[""], got, want[""], want)
		}
	}
	return p
}

// line compares one line of the input with its entries.
func (p *proof) line(line Line, entries []entry) {
	wanted := map[string]string{sales: failed}
	ending := rejected
	o, err := line.order()
	if err == nil {
		wanted, ending = map[string]string{sales: processed, billing: processed, shipping: processed}, 0
		for i, name := range []string{billing, shipping} {
			if outcomeOf(name, o.OrderID) == failsAlways {
				wanted[name] = failed
				ending += 1 + i
			}
		}
		p.want[ending][o.Currency] += o.Total
	}
	p.want[ending][""]++
	right := true
	var billed entry
	for _, name := range handling {
		found := slices.DeleteFunc(slices.Clone(entries), func(e entry) bool { return e.endpoint != name })
		right = p.endpoint(line.No, name, found, wanted[name]) && right
		if name == billing && len(found) > 0 {
			billed = found[0]
		}
	}
	if right {
		p.got[ending][""]++
		if billed.currency != "" {
			p.got[ending][billed.currency] += billed.amount
		}
	}
}

// endpoint reports whether the entries of a line at an endpoint are one with the outcome, or none for the outcome "".
func (p *proof) endpoint(line int, name string, found []entry, outcome string) bool {
	before := len(p.wrong)
	switch {
	case outcome == "" && len(found) > 0:
		p.complain("line %d: %s has seen an order that sales had to reject", line, name)
	case outcome == "":
	case len(found) == 0:
		p.complain("line %d: %s has not handled it", line, name)
	case len(found) > 1:
		p.complain("line %d: %s has handled it %d times", line, name, len(found))
	case found[0].outcome != outcome:
		p.complain("line %d: %s has %s it (%s), but it should have been %s", line, name, found[0].outcome, found[0].reason, outcome)
	}
	return len(p.wrong) == before
}

// queues checks that the queues hold the failed messages only.
func (p *proof) queues(stats []transport.QueueStats, failures int) {
	for _, q := range stats {
		held, want := q.Ready+q.Unsettled+q.Delayed, int64(0)
		if q.Name == errorQueue {
			want = int64(failures)
		}
		if held != want {
			p.complain("queue %s holds %d messages instead of %d", q.Name, held, want)
		}
	}
}

// print writes the proof as a table, and below it the errors.
func (p *proof) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ENDING\tORDERS\tINPUT SAYS\tAMOUNTS")
	for i, name := range endings {
		fmt.Fprintf(w, "%s\t%d\t%d\t%v\n", name, int(p.got[i][""]), int(p.want[i][""]), p.got[i])
	}
	if err := w.Flush(); err != nil {
		return err
	}
	const shown = 20
	for _, text := range p.wrong[:min(shown, len(p.wrong))] {
		fmt.Fprintln(out, "WRONG:", text)
	}
	if more := len(p.wrong) - shown; more > 0 {
		fmt.Fprintf(out, "… and %d more\n", more)
	}
	return nil
}

// verify compares the ledger and the queues with the input and shows the result.
func (d *demo) verify(ctx context.Context) error {
	now, err := d.ledger.counts(ctx, len(d.input.Lines))
	if err != nil {
		return err
	}
	stats, err := inspect(ctx, d.transport)
	if err != nil {
		return err
	}
	var pending int64
	for _, q := range stats {
		if q.Name != errorQueue {
			pending += q.Ready + q.Unsettled + q.Delayed
		}
	}
	if !now.done() && (now.imported == 0 || pending > 0) {
		fmt.Fprintf(d.Out, "%d of %d orders are finished; %d messages are on their way.\n", now.finished(), now.lines, pending)
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
	fmt.Fprintf(d.Out, "Verified: each of %d lines has exactly one ending, the amounts add up, "+
		"and the queues hold nothing but %d messages in %q.\n", now.lines, now.total().failed, errorQueue)
	return nil
}

// inspect returns the counts of all queues of a transport.
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

package demo

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/holdfast-go/holdfast/transport"
)

// endings are the final states of an order. Each line of the input has exactly one.
var endings = [...]string{
	"charged and shipped", "shipped, but not charged", "charged, but not shipped", "neither charged nor shipped",
	"rejected by sales",
}

// proof compares the input with the ledger.
type proof struct {
	want, got [len(endings)]int               // orders by ending: of the input, and of the ledger
	amounts   [len(endings)]map[string]Amount // of those of the ledger, by currency
	wrong     []string
}

func (p *proof) complain(format string, args ...any) {
	p.wrong = append(p.wrong, fmt.Sprintf(format, args...))
}

// prove compares the entries that follow from the input with those of the ledger.
func prove(in *Input, entries map[key][]entry) *proof {
	p, left := &proof{}, maps.Clone(entries)
	for i := range p.amounts {
		p.amounts[i] = map[string]Amount{}
	}
	for _, line := range in.Lines {
		p.line(line, left)
	}
	for _, k := range slices.SortedFunc(maps.Keys(left), func(a, b key) int { return cmp.Compare(a.line, b.line) }) {
		p.complain("line %d: %s has it, the input has not", k.line, k.endpoint)
	}
	return p
}

// line compares one line of the input with its entries, and removes them.
func (p *proof) line(line Line, entries map[key][]entry) {
	o, malformed := line.order()
	ending, before := 0, len(p.wrong)
	for i, name := range handling {
		want := entry{key: key{line.No, name}, outcome: processed, currency: o.Currency, amount: o.Total}
		switch {
		case malformed != nil:
			ending = len(endings) - 1
			want = entry{key: want.key, outcome: map[string]string{sales: failed}[name]}
		case failsOf(name, o.OrderID) == failsAlways:
			ending += i // at billing 1, at shipping 2, at both 3
			want.outcome = failed
		}
		p.endpoint(want, entries[want.key])
		delete(entries, want.key)
	}
	p.want[ending]++
	if len(p.wrong) > before {
		return
	}
	p.got[ending]++
	if malformed == nil {
		p.amounts[ending][o.Currency] += o.Total
	}
}

// endpoint checks that the entries of an order at an endpoint are the wanted one, or none when its
// outcome is "".
func (p *proof) endpoint(want entry, found []entry) {
	switch n := len(found); {
	case want.outcome == "" && n > 0:
		p.complain("line %d: %s has seen an order that sales had to reject", want.line, want.endpoint)
	case want.outcome == "":
	case n == 0:
		p.complain("line %d: %s has not handled it", want.line, want.endpoint)
	case n > 1:
		p.complain("line %d: %s has handled it %d times", want.line, want.endpoint, n)
	case found[0].outcome != want.outcome:
		p.complain("line %d: %s has %s it (%s), but it should have been %s",
			want.line, want.endpoint, found[0].outcome, found[0].reason, want.outcome)
	case found[0].currency != want.currency || found[0].amount != want.amount:
		p.complain("line %d: %s has recorded %v %s instead of %v %s",
			want.line, want.endpoint, found[0].amount, found[0].currency, want.amount, want.currency)
	}
}

// queues checks that the queues hold the failed messages only. It returns the number of messages in
// other queues than the error queue.
func (p *proof) queues(stats []transport.QueueStats, failures int) (pending int64) {
	for _, q := range stats {
		held, want := q.Ready+q.Unsettled+q.Delayed, int64(0)
		if q.Name == errorQueue {
			want = int64(failures)
		} else {
			pending += held
		}
		if held != want {
			p.complain("queue %s holds %d messages instead of %d", q.Name, held, want)
		}
	}
	return pending
}

// print writes the proof as a table, and below it the errors.
func (p *proof) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ENDING\tORDERS\tINPUT SAYS\tAMOUNTS")
	for i, ending := range endings {
		var amounts []string
		for _, currency := range slices.Sorted(maps.Keys(p.amounts[i])) {
			amounts = append(amounts, p.amounts[i][currency].String()+" "+currency)
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\n", ending, p.got[i], p.want[i], strings.Join(amounts, ", "))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for i, text := range p.wrong {
		if i == 20 {
			fmt.Fprintf(out, "… and %d more\n", len(p.wrong)-i)
			break
		}
		fmt.Fprintln(out, "WRONG:", text)
	}
	return nil
}

// verify compares the ledger and the queues with the input and shows the result.
func (d *demo) verify(ctx context.Context, now counts) error {
	stats, err := d.conn.(transport.Inspector).Inspect(ctx) //nolint:errcheck // both transports can
	if err != nil {
		return err
	}
	entries, err := d.ledger.entries(ctx)
	if err != nil {
		return err
	}
	p, failures := prove(d.input, entries), now.total.failed
	if pending := p.queues(stats, failures); !now.done() && (now.imported == 0 || pending > 0) {
		fmt.Fprintf(d.Out, "%d of %d orders are finished; %d messages are on their way.\n", now.finished(), now.lines, pending)
		return errUnfinished
	}
	if err := p.print(d.Out); err != nil {
		return err
	}
	if len(p.wrong) > 0 {
		return errUnproven
	}
	fmt.Fprintf(d.Out, "Verified: each of %d lines has exactly one ending, the amounts add up, "+
		"and the queues hold nothing but %d messages in %q.\n", now.lines, failures, errorQueue)
	return nil
}

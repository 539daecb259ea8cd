package demo

import (
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
var endings = []string{
	"charged and shipped", "shipped, but not charged", "charged, but not shipped", "neither charged nor shipped",
	"rejected by sales",
}

// sums are amounts by ending and currency, and numbers of orders under the currency "".
type sums map[[2]string]Amount

// of returns the number of orders with an ending, and their amounts.
func (s sums) of(ending string) (orders int, amounts string) {
	for _, key := range slices.SortedFunc(maps.Keys(s), func(a, b [2]string) int { return strings.Compare(a[1], b[1]) }) {
		if key[0] == ending && key[1] != "" {
			amounts += ", " + s[key].String() + " " + key[1]
		}
	}
	return int(s[[2]string{ending}]), strings.TrimPrefix(amounts, ", ")
}

// proof compares the input with the ledger.
type proof struct {
	want, got sums
	wrong     []string
}

func (p *proof) complain(format string, args ...any) {
	p.wrong = append(p.wrong, fmt.Sprintf(format, args...))
}

// prove compares the outcomes that follow from the input with the entries of each line.
func prove(in *Input, entries map[int][]entry) *proof {
	p, foreign := &proof{want: sums{}, got: sums{}}, maps.Clone(entries)
	for _, line := range in.Lines {
		p.line(line, entries[line.No])
		delete(foreign, line.No)
	}
	for _, no := range slices.Sorted(maps.Keys(foreign)) {
		p.complain("line %d: the ledger has it, the input has not", no)
	}
	for _, ending := range endings {
		want, expected := p.want.of(ending)
		if got, amounts := p.got.of(ending); got != want || amounts != expected {
			p.complain("%s: %d orders of %s, but the input makes %d of %s", ending, got, amounts, want, expected)
		}
	}
	return p
}

// line compares one line of the input with its entries.
func (p *proof) line(line Line, entries []entry) {
	wanted, ending := map[string]string{sales: failed}, len(endings)-1
	if o, err := line.order(); err == nil {
		wanted, ending = map[string]string{sales: processed, billing: processed, shipping: processed}, 0
		for i, name := range []string{billing, shipping} {
			if outcomeOf(name, o.OrderID) == failsAlways {
				wanted[name] = failed
				ending += 1 + i
			}
		}
		p.want[[2]string{endings[ending], o.Currency}] += o.Total
	}
	p.want[[2]string{endings[ending]}]++
	before, billed := len(p.wrong), entry{}
	for _, name := range handling {
		found := slices.DeleteFunc(slices.Clone(entries), func(e entry) bool { return e.endpoint != name })
		p.endpoint(line.No, name, found, wanted[name])
		if name == billing && len(found) > 0 {
			billed = found[0]
		}
	}
	if len(p.wrong) > before {
		return
	}
	p.got[[2]string{endings[ending]}]++
	if billed.currency != "" {
		p.got[[2]string{endings[ending], billed.currency}] += billed.amount
	}
}

// endpoint checks that the entries of a line at an endpoint are one with the outcome, or none for the outcome "".
func (p *proof) endpoint(line int, name string, found []entry, outcome string) {
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
	for _, ending := range endings {
		want, _ := p.want.of(ending)
		got, amounts := p.got.of(ending)
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\n", ending, got, want, amounts)
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
	stats, err := d.depths(ctx)
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

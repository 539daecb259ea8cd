package demo

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/holdfast-go/holdfast/transport"
)

// ending is what becomes of an order in the end. Every line of the input has exactly one.
type ending string

const (
	rejected    ending = "rejected by sales"
	fulfilled   ending = "charged and shipped"
	notCharged  ending = "shipped, but not charged"
	notShipped  ending = "charged, but not shipped"
	neitherDone ending = "neither charged nor shipped"
)

var endings = []ending{fulfilled, notCharged, notShipped, neitherDone, rejected}

func endingOf(charged, shipped bool) ending {
	switch {
	case charged && shipped:
		return fulfilled
	case shipped:
		return notCharged
	case charged:
		return notShipped
	}
	return neitherDone
}

// sum is how many orders came to an ending and what they are worth, by currency.
type sum struct {
	orders  int
	amounts map[string]Amount
}

func (s *sum) add(currency string, a Amount) {
	s.orders++
	if currency == "" {
		return
	}
	if s.amounts == nil {
		s.amounts = map[string]Amount{}
	}
	s.amounts[currency] += a
}

func (s *sum) String() string {
	var parts []string
	for _, currency := range slices.Sorted(maps.Keys(s.amounts)) {
		parts = append(parts, s.amounts[currency].String()+" "+currency)
	}
	return strings.Join(parts, ", ")
}

// sums are those of all endings.
type sums map[ending]*sum

func (s sums) of(e ending) *sum {
	if s[e] == nil {
		s[e] = &sum{}
	}
	return s[e]
}

// proof is the input held against the ledger.
type proof struct {
	want, got sums
	wrong     []string // what does not add up
}

func (p *proof) complain(format string, args ...any) {
	p.wrong = append(p.wrong, fmt.Sprintf(format, args...))
}

// prove compares what the input says must happen with what the ledger says has happened.
func prove(in *Input, entries []entry) *proof {
	p := &proof{want: sums{}, got: sums{}}
	byLine := map[int]map[string][]entry{}
	for _, e := range entries {
		if e.outcome == delayed {
			continue // not an end
		}
		if byLine[e.line] == nil {
			byLine[e.line] = map[string][]entry{}
		}
		byLine[e.line][e.endpoint] = append(byLine[e.line][e.endpoint], e)
	}
	for _, line := range in.Lines {
		p.line(line, byLine[line.No])
		delete(byLine, line.No)
	}
	for _, no := range slices.Sorted(maps.Keys(byLine)) {
		p.complain("line %d: the ledger has it, the input has not", no)
	}
	for _, e := range endings {
		if want, got := p.want.of(e), p.got.of(e); want.orders != got.orders || !maps.Equal(want.amounts, got.amounts) {
			p.complain("%s: %d orders of %v, but the input makes %d of %v", e, got.orders, got, want.orders, want)
		}
	}
	return p
}

// line checks one line of the input against its entries.
func (p *proof) line(line Line, entries map[string][]entry) {
	o, err := line.order()
	if err != nil {
		p.want.of(rejected).orders++
		if p.once(line.No, sales, entries, failed) {
			p.got.of(rejected).orders++
		}
		p.never(line.No, entries, billing, shipping)
		return
	}
	charged, shipped := fate(billing, o.OrderID) != FailsAlways, fate(shipping, o.OrderID) != FailsAlways
	p.want.of(endingOf(charged, shipped)).add(o.Currency, o.Total)
	ok := p.once(line.No, sales, entries, processed)
	ok = p.once(line.No, billing, entries, outcomeIf(charged)) && ok
	ok = p.once(line.No, shipping, entries, outcomeIf(shipped)) && ok
	if ok {
		e := entries[billing][0]
		p.got.of(endingOf(charged, shipped)).add(e.currency, e.amount)
	}
}

func outcomeIf(done bool) string {
	if done {
		return processed
	}
	return failed
}

// once checks that the line has one entry of the endpoint, and that it is as it must be.
func (p *proof) once(line int, endpoint string, entries map[string][]entry, outcome string) bool {
	found := entries[endpoint]
	switch {
	case len(found) == 0:
		p.complain("line %d: %s has not handled it", line, endpoint)
	case len(found) > 1:
		p.complain("line %d: %s has handled it %d times", line, endpoint, len(found))
	case found[0].outcome != outcome:
		p.complain("line %d: %s has %s it (%s), but it should have been %s",
			line, endpoint, found[0].outcome, found[0].reason, outcome)
	default:
		return true
	}
	return false
}

// never checks that the endpoints have seen nothing of a line.
func (p *proof) never(line int, entries map[string][]entry, endpoints ...string) {
	for _, name := range endpoints {
		if len(entries[name]) > 0 {
			p.complain("line %d: %s has seen an order that sales had to reject", line, name)
		}
	}
}

// queues checks that nothing is left in the queues but what the ledger says has failed.
func (p *proof) queues(stats []transport.QueueStats, failures int) {
	for _, q := range stats {
		left, want := q.Ready+q.Unsettled+q.Delayed, int64(0)
		if q.Name == errorQueue {
			want = int64(failures)
		}
		if left != want {
			p.complain("queue %s holds %d messages instead of %d", q.Name, left, want)
		}
	}
}

// print writes the proof for people.
func (p *proof) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ENDING\tORDERS\tINPUT SAYS\tAMOUNTS")
	for _, e := range endings {
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\n", e, p.got.of(e).orders, p.want.of(e).orders, p.got.of(e))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	const shown = 20
	for i, text := range p.wrong {
		if i == shown {
			fmt.Fprintf(out, "… and %d more\n", len(p.wrong)-shown)
			break
		}
		fmt.Fprintln(out, "WRONG:", text)
	}
	return nil
}

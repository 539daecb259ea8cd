package demo

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/transport"
)

// ledgerOf are the entries that the input must lead to.
func ledgerOf(t *testing.T, in *Input) []entry {
	t.Helper()
	var entries []entry
	for _, line := range in.Lines {
		o, err := line.order()
		if err != nil {
			entries = append(entries, entry{key: key{line.No, sales}, outcome: failed})
			continue
		}
		for _, name := range handling {
			e := entry{key: key{line.No, name}, outcome: processed, currency: o.Currency, amount: o.Total}
			if failsOf(name, o.OrderID) == failsAlways {
				e.outcome = failed
			}
			entries = append(entries, e)
		}
	}
	return entries
}

// byKey returns entries as the ledger does.
func byKey(entries []entry) map[key][]entry {
	all := map[key][]entry{}
	for _, e := range entries {
		all[e.key] = append(all[e.key], e)
	}
	return all
}

func TestProofAcceptsWhatTheInputLeadsTo(t *testing.T) {
	in, err := ReadInput(orders, 0)
	if err != nil {
		t.Fatal(err)
	}
	if p := prove(in, byKey(ledgerOf(t, in))); len(p.wrong) > 0 {
		t.Errorf("complaints about a right ledger: %q", p.wrong)
	}
}

func TestProofNamesTheLineThatIsWrong(t *testing.T) {
	in, err := ReadInput(orders, 30)
	if err != nil {
		t.Fatal(err)
	}
	right := ledgerOf(t, in)
	at := func(line int, endpoint string) int {
		return slices.IndexFunc(right, func(e entry) bool { return e.line == line && e.endpoint == endpoint })
	}
	for _, c := range []struct {
		name   string
		change func([]entry) []entry
		want   string
	}{
		{"an order left out", func(e []entry) []entry { return slices.Delete(e, at(3, sales), at(3, sales)+1) }, "line 3: sales has not handled it"},
		{"an order handled twice", func(e []entry) []entry { return append(e, e[at(4, shipping)]) }, "line 4: shipping has handled it 2 times"},
		{"a wrong outcome", func(e []entry) []entry { e[at(5, billing)].outcome = failed; return e }, "line 5: billing has failed it"},
		{"a wrong amount", func(e []entry) []entry { e[at(6, billing)].amount++; return e }, "line 6: billing has recorded"},
		{"a wrong currency", func(e []entry) []entry { e[at(6, shipping)].currency = "XBT"; return e }, "line 6: shipping has recorded"},
		{"a malformed line published", func(e []entry) []entry { return append(e, entry{key: key{15, billing}, outcome: processed}) }, "line 15: billing has seen"},
		{"an order from nowhere", func(e []entry) []entry { return append(e, entry{key: key{99, sales}, outcome: processed}) }, "line 99: sales has it, the input has not"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := prove(in, byKey(c.change(slices.Clone(right))))
			if !slices.ContainsFunc(p.wrong, func(text string) bool { return strings.HasPrefix(text, c.want) }) {
				t.Errorf("complaints are %q, want %q", p.wrong, c.want)
			}
			var out bytes.Buffer
			if err := p.print(&out); err != nil || !strings.Contains(out.String(), "WRONG: "+c.want) {
				t.Errorf("printed %q (%v)", out.String(), err)
			}
		})
	}
}

func TestProofLooksIntoTheQueues(t *testing.T) {
	p := &proof{}
	pending := p.queues([]transport.QueueStats{{Name: errorQueue, Ready: 3}, {Name: sales}}, 3)
	if len(p.wrong) > 0 || pending != 0 {
		t.Errorf("complaints about right queues: %q, %d messages pending", p.wrong, pending)
	}
	pending = p.queues([]transport.QueueStats{{Name: errorQueue, Ready: 2}, {Name: billing, Delayed: 1}}, 3)
	if len(p.wrong) != 2 || pending != 1 {
		t.Errorf("complaints are %q, want one of each queue; %d messages pending, want 1", p.wrong, pending)
	}
}

func TestCountsKnowWhenAllIsDone(t *testing.T) {
	now := counts{lines: 3, by: map[string]count{
		sales:    {processed: 2, failed: 1, retried: 4},
		billing:  {processed: 1, failed: 1, delayed: 2},
		shipping: {processed: 1},
	}}
	if now.done() || now.finished() != 2 {
		t.Errorf("done %v, finished %d: want one order still to be shipped", now.done(), now.finished())
	}
	now.by[shipping] = count{processed: 2}
	if !now.done() || now.finished() != 3 {
		t.Errorf("done %v, finished %d: want all three", now.done(), now.finished())
	}
	if got, want := now.by[sales].plus(now.by[billing]), (count{processed: 3, failed: 2, delayed: 2, retried: 4}); got != want {
		t.Errorf("sum %+v, want %+v", got, want)
	}
}

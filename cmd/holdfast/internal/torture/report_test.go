package torture

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/recoverability"
)

// doctored is a run of which all went well, for tests to spoil: ten messages, the second and the
// third of them poison.
type doctored struct {
	plan   *plan
	a      assignment
	got    records
	parked []parkedMessage
	left   int64
}

func newDoctored(atomic bool) *doctored {
	d := &doctored{
		plan: &plan{poison: map[int]death{2: byExit, 3: byKill}},
		a:    assignment{Name: "t", Load: Load{Messages: 10, Poison: 2, Atomic: atomic, Seed: 5}},
		got:  records{started: map[int]int{2: 6, 3: 7}, done: map[int]int{}},
	}
	for n := 1; n <= 10; n++ {
		if n != 2 && n != 3 {
			d.got.started[n], d.got.done[n] = 1, 1
		}
	}
	d.park(2)
	d.park(3)
	return d
}

func (d *doctored) park(n int) {
	d.parked = append(d.parked, parkedMessage{n: n, id: d.a.id(n), class: recoverability.ClassCrashLoop})
}

func (d *doctored) verify() *Report { return verify(d.plan, &d.a, d.got, d.parked, d.left) }

func TestARunWithoutFaultIsFoundSound(t *testing.T) {
	want := &Report{
		Sent: 10, Processed: 8, PoisonParked: 2, MaxAttempts: 7, Seed: 5, Plan: newDoctored(false).plan.hash(),
		Broken: []Breach{}, Attempts: map[int]int{1: 8, 6: 1, 7: 1},
	}
	if diff := cmp.Diff(want, newDoctored(false).verify()); diff != "" {
		t.Error(diff)
	}
}

func TestWhatBrokeIsFoundWithTheMessages(t *testing.T) {
	for _, test := range []struct {
		name   string
		atomic bool
		spoil  func(*doctored)
		broken string // of the breach; "" for none
		ids    []string
	}{
		{"lost", false, func(d *doctored) { delete(d.got.done, 4) }, "lost", []string{"t-4"}},
		{"lost before it was handled", true, func(d *doctored) { delete(d.got.done, 5); delete(d.got.started, 5) }, "lost", []string{"t-5"}},
		{"twice in atomic mode", true, func(d *doctored) { d.got.done[7], d.got.done[1] = 2, 3 }, "more than once", []string{"t-1", "t-7"}},
		{"twice in receiveonly mode", false, func(d *doctored) { d.got.done[7] = 2 }, "", nil},
		{"innocent parked", false, func(d *doctored) { d.park(9); delete(d.got.done, 9) }, "innocent", []string{"t-9"}},
		{"innocent processed and parked", false, func(d *doctored) { d.park(9); d.park(9) }, "innocent", []string{"t-9"}},
		{"stranger parked", false, func(d *doctored) { d.parked = append(d.parked, parkedMessage{id: "x"}) }, "innocent", []string{"x"}},
		{"poison parked as an ordinary failure", false, func(d *doctored) { d.parked[0].class = "timeout" }, "poison", []string{"t-2"}},
		{"poison parked twice only", false, func(d *doctored) { d.park(2) }, "", nil},
		{"processed, never sent", false, func(d *doctored) { d.got.done[11] = 1 }, "never sent", []string{"t-11"}},
		{"not finished", false, func(d *doctored) { d.left = 1; delete(d.got.done, 4) }, "not finished", []string{"t-4"}},
		{"not finished, and what is left is a copy", false, func(d *doctored) { d.left = 1 }, "not finished", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := newDoctored(test.atomic)
			test.spoil(d)
			r := d.verify()
			if test.broken == "" {
				if !r.OK() {
					t.Errorf("broken: %v", r.Broken)
				}
				return
			}
			if len(r.Broken) != 1 || !strings.Contains(r.Broken[0].Invariant, test.broken) || !cmp.Equal(r.Broken[0].Messages, test.ids) {
				t.Errorf("broken: %v, want %s: %v", r.Broken, test.broken, test.ids)
			}
		})
	}
}

// Distinct ones count: poison that is parked twice does not stand for another.
func TestPoisonThatIsMissingInTheErrorQueueIsFound(t *testing.T) {
	d := newDoctored(false)
	d.parked = d.parked[:1]
	d.park(2)
	r := d.verify()
	want := []Breach{
		{"lost: neither processed nor in the error queue", []string{"t-3"}},
		{"poison is not in the error queue with class crash-loop", []string{"t-3"}},
	}
	if diff := cmp.Diff(want, r.Broken); diff != "" || r.PoisonParked != 1 || r.Lost != 1 {
		t.Errorf("poison parked %d, lost %d: %s", r.PoisonParked, r.Lost, diff)
	}
}

func TestTheCountsAreThoseOfDistinctMessages(t *testing.T) {
	d := newDoctored(true)
	d.got.done[1], d.got.done[7] = 4, 2
	d.park(9)
	d.park(9)
	r := d.verify()
	got := []int{r.Processed, r.HandledTwice, r.InnocentsParked, len(r.Broken)}
	if want := []int{8, 2, 1, 2}; !cmp.Equal(got, want) {
		t.Errorf("processed, twice, innocents, broken: %v, want %v", got, want)
	}
}

func TestNoReportIsNotOK(t *testing.T) {
	if (*Report)(nil).OK() {
		t.Error("nil is OK")
	}
}

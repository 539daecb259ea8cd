package torture

import (
	"fmt"
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

func newDoctored(mode Mode) *doctored {
	d := &doctored{
		plan: &plan{poison: map[int]death{2: byExit, 3: byKill}},
		a:    assignment{Name: "t", Load: Load{Messages: 10, Poison: 2, Mode: mode, Seed: 5}},
		got:  records{started: map[int]int{2: 6, 3: 7}, done: map[int]int{}},
	}
	for n := 1; n <= 10; n++ {
		if n != 2 && n != 3 {
			d.got.started[n], d.got.done[n] = 1, 1
			if mode == Outbox {
				d.arrive(n, fmt.Sprint("id-", n))
			}
		}
	}
	d.park(2)
	d.park(3)
	return d
}

func (d *doctored) park(n int) {
	d.parked = append(d.parked, parkedMessage{n: n, id: d.a.id(n), class: recoverability.ClassCrashLoop})
}

// arrive has a message of the handler of n in the queue of receipts.
func (d *doctored) arrive(n int, id string) {
	if d.got.arrived == nil {
		d.got.arrived = map[int]map[string]int{}
	}
	if d.got.arrived[n] == nil {
		d.got.arrived[n] = map[string]int{}
	}
	d.got.arrived[n][id]++
}

func (d *doctored) verify() *Report { return verify(d.plan, &d.a, d.got, d.parked, d.left) }

func TestARunWithoutFaultIsFoundSound(t *testing.T) {
	want := &Report{
		Sent: 10, Processed: 8, PoisonParked: 2, MaxAttempts: 7, Seed: 5, Plan: newDoctored(ReceiveOnly).plan.hash(),
		Broken: []Breach{}, Attempts: map[int]int{1: 8, 6: 1, 7: 1},
	}
	if diff := cmp.Diff(want, newDoctored(ReceiveOnly).verify()); diff != "" {
		t.Error(diff)
	}
}

func TestWhatBrokeIsFoundWithTheMessages(t *testing.T) {
	for _, test := range []struct {
		name   string
		mode   Mode
		spoil  func(*doctored)
		broken string // of the breach; "" for none
		ids    []string
	}{
		{"lost", ReceiveOnly, func(d *doctored) { delete(d.got.done, 4) }, "lost", []string{"t-4"}},
		{"lost before it was handled", Atomic, func(d *doctored) { delete(d.got.done, 5); delete(d.got.started, 5) }, "lost", []string{"t-5"}},
		{"twice in atomic mode", Atomic, func(d *doctored) { d.got.done[7], d.got.done[1] = 2, 3 }, "more than once", []string{"t-1", "t-7"}},
		{"twice in receiveonly mode", ReceiveOnly, func(d *doctored) { d.got.done[7] = 2 }, "", nil},
		{"innocent parked", ReceiveOnly, func(d *doctored) { d.park(9); delete(d.got.done, 9) }, "innocent", []string{"t-9"}},
		{"innocent processed and parked", ReceiveOnly, func(d *doctored) { d.park(9); d.park(9) }, "innocent", []string{"t-9"}},
		{"stranger parked", ReceiveOnly, func(d *doctored) { d.parked = append(d.parked, parkedMessage{id: "x"}) }, "innocent", []string{"x"}},
		{"poison parked as an ordinary failure", ReceiveOnly, func(d *doctored) { d.parked[0].class = "timeout" }, "poison", []string{"t-2"}},
		{"poison parked twice only", ReceiveOnly, func(d *doctored) { d.park(2) }, "", nil},
		{"processed, never sent", ReceiveOnly, func(d *doctored) { d.got.done[11] = 1 }, "never sent", []string{"t-11"}},
		{"not finished", ReceiveOnly, func(d *doctored) { d.left = 1; delete(d.got.done, 4) }, "not finished", []string{"t-4"}},
		{"a row twice with an outbox", Outbox, func(d *doctored) { d.got.done[7] = 2; d.arrive(7, "other") }, "more than once", []string{"t-7"}},
		{"a message arrives again", Outbox, func(d *doctored) { d.arrive(7, "id-7") }, "", nil},
		{"a second message of one row", Outbox, func(d *doctored) { d.arrive(7, "other") }, "ghosts", []string{"t-7"}},
		{"a message of poison", Outbox, func(d *doctored) { d.arrive(2, "other") }, "ghosts", []string{"t-2"}},
		{"a foreign message", Outbox, func(d *doctored) { d.arrive(0, "other") }, "ghosts", []string{"t-0"}},
		{"a row without its message", Outbox, func(d *doctored) { delete(d.got.arrived, 7) }, "missing", []string{"t-7"}},
		{"a message that is not sent when the time is up", Outbox, func(d *doctored) { d.left = 1; delete(d.got.arrived, 7) }, "not finished", nil},
		{"not finished, and what is left is a copy", ReceiveOnly, func(d *doctored) { d.left = 1 }, "not finished", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := newDoctored(test.mode)
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
	d := newDoctored(ReceiveOnly)
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
	d := newDoctored(Atomic)
	d.got.done[1], d.got.done[7] = 4, 2
	d.park(9)
	d.park(9)
	r := d.verify()
	got := []int{r.Processed, r.HandledTwice, r.InnocentsParked, len(r.Broken)}
	if want := []int{8, 2, 1, 2}; !cmp.Equal(got, want) {
		t.Errorf("processed, twice, innocents, broken: %v, want %v", got, want)
	}
}

func TestMessagesAreCountedByTheirIDs(t *testing.T) {
	d := newDoctored(Outbox)
	d.arrive(1, "id-1")
	d.arrive(1, "id-1")
	d.arrive(4, "other")
	delete(d.got.arrived, 5)
	want := &Sent{Rows: 8, Arrived: 8, ArrivedAgain: 2, Ghosts: 1, Missing: 1}
	if diff := cmp.Diff(want, d.verify().Outbox); diff != "" {
		t.Error(diff)
	}
}

func TestNoReportIsNotOK(t *testing.T) {
	if (*Report)(nil).OK() {
		t.Error("nil is OK")
	}
}

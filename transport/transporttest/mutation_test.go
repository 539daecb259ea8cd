package transporttest

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// A mutant is a fault that a driver may have, and the rule that finds it.
type mutant struct {
	rule  string
	fault string
	make  func(f *faulty)
}

func TestEveryFaultIsFoundByItsRule(t *testing.T) {
	for _, m := range mutants {
		t.Run(m.rule+"/"+m.fault, func(t *testing.T) {
			if leavesGoroutines[m.rule] {
				t.Parallel() // it takes seconds
			}
			i := slices.IndexFunc(table, func(r rule) bool { return r.name == m.rule })
			if i < 0 {
				t.Fatal("there is no such rule")
			}
			r := tryOn(t, table[i], faultyHarness(m.make))
			// Some rules set goroutines against each other, and a schedule may hide the fault.
			for try := 1; try < 5 && !r.Failed(); try++ {
				r = tryOn(t, table[i], faultyHarness(m.make))
			}
			if !r.Failed() {
				t.Error("the rule did not notice")
			}
			t.Log(r.text())
		})
	}
}

// Without a fault the very same thing passes: it is the fault that is found.
func TestTheSoundDriverPasses(t *testing.T) {
	for _, m := range mutants {
		i := slices.IndexFunc(table, func(r rule) bool { return r.name == m.rule })
		set := func(f *faulty) {
			m.make(f)
			*f = faulty{Transport: f.Transport}
		}
		if r := tryOn(t, table[i], faultyHarness(set)); r.Failed() {
			t.Errorf("%s: %s", m.rule, r.text())
		}
	}
}

// A broker may keep no order. Rules about something else do not need one.
func TestRulesAboutSettlingAcceptAnyOrder(t *testing.T) {
	for _, name := range []string{"receive-closed-settle", "settle-own-context", "lease-renewed", "lease-renew-settled"} {
		i := slices.IndexFunc(table, func(r rule) bool { return r.name == name })
		if r := tryOn(t, table[i], faultyHarness(sending(reversed))); r.Failed() {
			t.Errorf("%s: %s", name, r.text())
		}
	}
}

func TestEveryRuleHasAFaultThatItFinds(t *testing.T) {
	for _, r := range table {
		if !slices.ContainsFunc(mutants, func(m mutant) bool { return m.rule == r.name }) {
			t.Errorf("no fault is known that %s finds", r.name)
		}
	}
}

// tryOn runs a rule on a driver that may fail it. Its waits take no time, but for
// the rules that look for goroutines: one left in a bubble would end the program.
func tryOn(t *testing.T, r rule, h Harness) (result *recorder) {
	t.Helper()
	run := func(t *testing.T) {
		t.Helper()
		result = record(t, func(tb testing.TB) {
			t := newTest(tb, h)
			t.ending = 5 * time.Second // those that a fault leaves behind never end
			r.check(t)
		})
	}
	if leavesGoroutines[r.name] {
		run(t)
	} else {
		synctest.Test(t, run)
	}
	return result
}

var leavesGoroutines = map[string]bool{"close-no-goroutines": true, "fault-close-away": true}

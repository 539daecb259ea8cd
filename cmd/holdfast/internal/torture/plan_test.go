package torture

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func load(seed uint64) Load {
	return Load{
		Messages: 500, Poison: 7, Workers: 3, Concurrency: 4,
		KillEvery: 100 * time.Millisecond, Failures: 0.1, Seed: seed,
	}
}

func firstKills(p *plan, n int) (ks []Kill) {
	for k := p.kills(); len(ks) < n; {
		ks = append(ks, k.next())
	}
	return ks
}

func TestTheSameSeedHasTheSamePlan(t *testing.T) {
	one, same, other := newPlan(load(1)), newPlan(load(1)), newPlan(load(2))
	for _, diff := range []string{
		cmp.Diff(one.poison, same.poison), cmp.Diff(one.fails, same.fails),
		cmp.Diff(firstKills(one, 100), firstKills(same, 100)), cmp.Diff(one.hash(), same.hash()),
	} {
		if diff != "" {
			t.Error(diff)
		}
	}
	if cmp.Equal(one.poison, other.poison) || cmp.Equal(firstKills(one, 100), firstKills(other, 100)) || one.hash() == other.hash() {
		t.Error("another seed has the same plan")
	}
	later := load(1)
	later.KillEvery *= 2
	if newPlan(later).hash() == one.hash() {
		t.Error("other kills have the same hash")
	}
}

func TestAPlanHasWhatWasAskedFor(t *testing.T) {
	p := newPlan(load(3))
	ways := map[death]bool{}
	for n, way := range p.poison {
		ways[way] = true
		if _, fails := p.fails[n]; fails || n < 1 || n > 500 {
			t.Errorf("message %d is poison, and fails: %v", n, fails)
		}
	}
	later := 0
	for _, l := range p.fails {
		if l {
			later++
		}
	}
	got := []int{len(p.poison), len(ways), len(p.fails), later}
	if want := []int{7, len(deaths), 50, 12}; !cmp.Equal(got, want) {
		t.Errorf("poison, ways, failing, later: %v, want %v", got, want)
	}
	all := newPlan(Load{Messages: 3, Poison: 3, Failures: 1})
	if len(all.poison) != 3 || len(all.fails) != 0 {
		t.Errorf("all poison: %+v", all)
	}
}

func TestKillsHitEveryWorkerAsOftenAsAskedFor(t *testing.T) {
	const many = 1000
	before, hit := time.Duration(0), map[int]int{}
	for _, k := range firstKills(newPlan(load(4)), many) {
		if gap := k.At - before; gap < 50*time.Millisecond || gap > 150*time.Millisecond {
			t.Fatalf("%v between two kills", gap)
		}
		before = k.At
		hit[k.Worker]++
	}
	if mean := before / many; mean < 95*time.Millisecond || mean > 105*time.Millisecond {
		t.Errorf("a kill every %v", mean)
	}
	for worker := range 3 {
		if hit[worker] < many/4 {
			t.Errorf("worker %d was hit %d times of %d", worker, hit[worker], many)
		}
	}
}

func TestLoadsThatMakeNoSenseAreRefused(t *testing.T) {
	for name, change := range map[string]func(*Load){
		"messages":    func(l *Load) { l.Messages = 0 },
		"workers":     func(l *Load) { l.Workers = 0 },
		"concurrency": func(l *Load) { l.Concurrency = -1 },
		"poison":      func(l *Load) { l.Poison = l.Messages + 1 },
		"less poison": func(l *Load) { l.Poison = -1 },
		"handler":     func(l *Load) { l.Handler = -1 },
		"kills":       func(l *Load) { l.KillEvery = -1 },
		"most kills":  func(l *Load) { l.MaxKills = -1 },
		"failures":    func(l *Load) { l.Failures = 1.1 },
	} {
		l := load(1)
		if err := l.Check(); err != nil {
			t.Fatal(err)
		}
		if change(&l); l.Check() == nil {
			t.Errorf("%s: not refused", name)
		}
	}
}

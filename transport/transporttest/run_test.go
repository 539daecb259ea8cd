package transporttest

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/transport"
)

func TestTheSummaryCountsAndNames(t *testing.T) {
	var s summary
	s.ran(&recorder{})
	s.ran(&recorder{})
	s.ran(&recorder{failures: []string{"one"}})
	s.notOffered("tx-commit")
	s.notOffered("delay-at")
	want := "2 rules passed, 1 failed, 2 not offered: delay-at, tx-commit"
	if diff := cmp.Diff(want, s.String()); diff != "" {
		t.Error(diff)
	}
}

func TestARuleSaysWhatADriverLacks(t *testing.T) {
	r := rule{needs: []capability{delays, cancelling}}
	full, empty := offer{limits: transport.Limits{MaxDelay: 1}, conn: &faultyConn{}}, offer{}
	if missing := r.missing(&full); missing != nil {
		t.Errorf("missing %s", missing)
	}
	want := []string{"delays (Limits.MaxDelay)", "Canceler"}
	if diff := cmp.Diff(want, r.missing(&empty)); diff != "" {
		t.Error(diff)
	}
}

func TestAFailurePrintsTheRule(t *testing.T) {
	r := rule{rule: "A sentence.", run: func(t *test) { t.Fatalf("no") }}
	h := faultyHarness(func(*faulty) {})
	failed := record(t, func(t testing.TB) { r.check(newTest(t, h)) })
	if want := "the rule: A sentence."; !strings.Contains(failed.text(), want) {
		t.Errorf("it printed %q, want %q in it", failed.text(), want)
	}
}

func TestNamesOfRulesAreUniqueAndTheirSentencesWhole(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range table {
		if seen[r.name] {
			t.Errorf("%s is there twice", r.name)
		}
		seen[r.name] = true
		if !strings.HasSuffix(r.rule, ".") || strings.ToUpper(r.rule[:1]) != r.rule[:1] {
			t.Errorf("%s: %q is no sentence", r.name, r.rule)
		}
	}
}

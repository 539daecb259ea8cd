package harness

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// The log of a failed test is its last lines, in order.
func TestAFailedTestShowsTheEndOfTheLog(t *testing.T) {
	for _, n := range []int{0, 1, shownLines, shownLines + 1, 3*shownLines + 7} {
		r := &recent{}
		var want []string
		for i := range n {
			fmt.Fprintf(r, "line %d\n", i)
			want = append(want, fmt.Sprintf("line %d\n", i))
		}
		want = want[max(0, n-shownLines):]
		if got := slices.Collect(strings.Lines(r.String())); !slices.Equal(got, want) {
			t.Errorf("of %d lines the log has %d, want %d: %q", n, len(got), len(want), got)
		}
	}
}

// Only a failed test prints its log.
func TestOnlyAFailedTestPrintsItsLog(t *testing.T) {
	for _, failed := range []bool{false, true} {
		inner := &recorded{TB: t, failed: failed}
		Logger(inner).Info("hello")
		inner.cleanup()
		if printed := strings.Contains(inner.text, "msg=hello"); printed != failed {
			t.Errorf("failed %v: printed %q", failed, inner.text)
		}
	}
}

// recorded is a test that records its output.
type recorded struct {
	testing.TB
	failed  bool
	text    string
	cleanup func()
}

func (r *recorded) Failed() bool                   { return r.failed }
func (r *recorded) Cleanup(f func())               { r.cleanup = f }
func (r *recorded) Logf(format string, all ...any) { r.text += fmt.Sprintf(format, all...) }

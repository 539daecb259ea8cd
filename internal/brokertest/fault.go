package brokertest

import (
	"os"
	"testing"
)

// Fault is called first by tests that kill processes, restart brokers, cut connections or show a
// bad day: those whose names begin with TestChaos. It skips the test unless HOLDFAST_FAULTS is set,
// as make test-faults does, and reports whether the test is to run at full size:
// HOLDFAST_FAULTS=short is the short form that CI runs, HOLDFAST_SOAK=1 implies the full one.
func Fault(t testing.TB) (full bool) {
	t.Helper()
	if os.Getenv("HOLDFAST_SOAK") != "" {
		return true
	}
	switch size := os.Getenv("HOLDFAST_FAULTS"); size {
	case "":
		t.Skip("make test-faults runs it")
	case "short":
		return false
	}
	return true
}

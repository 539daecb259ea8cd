package work

import (
	"slices"

	"github.com/holdfast-go/holdfast/transport"
)

// An operation with a name sets a timer, and removes the timer if the operation has no message.

// IsTimer reports whether an operation sets or removes a timer.
func IsTimer(op transport.Operation) bool { return op.Name != "" }

// withoutCancelled returns the messages in ops: of the timers with one name the last, unless the
// timer was cancelled after that.
func withoutCancelled(ops []transport.Operation) []transport.Operation {
	if !slices.ContainsFunc(ops, IsTimer) {
		return ops
	}
	last := lastOfTimers(ops)
	var kept []transport.Operation
	for i, op := range ops {
		if op.Name == "" || op.Message != nil && last[op.Name] == i {
			kept = append(kept, op)
		}
	}
	return kept
}

// lastOfTimers returns the index of the last operation of each name.
func lastOfTimers(ops []transport.Operation) map[string]int {
	last := map[string]int{}
	for i := range ops {
		if ops[i].Name != "" {
			last[ops[i].Name] = i
		}
	}
	return last
}

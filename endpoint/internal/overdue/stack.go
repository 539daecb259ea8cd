package overdue

import (
	"bytes"
	"runtime"
	"slices"

	"github.com/holdfast-go/holdfast/internal/goroutines"
)

const (
	// maxDump bounds the stacks of all goroutines, among which a stack is looked for.
	maxDump = 16 << 20
	// maxStack bounds a stack in the log.
	maxStack = 8 << 10
)

// stacksOf returns the stacks of goroutines. A goroutine that has ended has none.
func stacksOf(ids []uint64) map[uint64]string {
	if len(ids) == 0 {
		return nil
	}
	dump := make([]byte, 64<<10)
	for {
		n := runtime.Stack(dump, true)
		if n < len(dump) || len(dump) >= maxDump {
			dump = dump[:n]
			break
		}
		dump = make([]byte, 4*len(dump))
	}
	found := make(map[uint64]string, len(ids))
	for stack := range bytes.SplitSeq(dump, []byte("\n\n")) {
		if id := goroutines.ParseID(stack); slices.Contains(ids, id) {
			found[id] = string(stack[:min(len(stack), maxStack)])
		}
	}
	return found
}

package destination

import "time"

// Row is a stored message that was postponed.
type Row struct {
	// Handle is that with which the row can be called before it is due; "" if it cannot.
	Handle string
	// Due is when it returns.
	Due time.Time
	// Stored is when it was stored.
	Stored time.Time
	// Audit reports whether it has audit copies alone.
	Audit bool
}

// rows are the rows that wait for one destination.
type rows struct {
	callable byDue // with handles
	fixed    byDue
	count    [2]int64 // rows without and with audit copies alone
}

func (r *rows) len() int { return len(r.callable) + len(r.fixed) }

// waitingRow is a [Row] in less memory.
type waitingRow struct {
	handle string
	due    int64 // nanoseconds since 1970
	class  int8  // index in rows.count
}

// byDue is a heap of rows; the first is due first.
type byDue []waitingRow

func (h byDue) Len() int           { return len(h) }
func (h byDue) Less(i, j int) bool { return h[i].due < h[j].due }
func (h byDue) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements [heap.Interface].
func (h *byDue) Push(row any) { *h = append(*h, row.(waitingRow)) } //nolint:errcheck // Postpone pushes rows

// Pop implements [heap.Interface].
func (h *byDue) Pop() any {
	last := (*h)[len(*h)-1]
	(*h)[len(*h)-1] = waitingRow{}
	*h = (*h)[:len(*h)-1]
	return last
}

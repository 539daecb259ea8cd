package destination

import (
	"container/heap"
	"time"
)

const (
	// portion is how many rows are called at once for a destination that answers again.
	portion = 1000
	// calledFor is how long a called row is waited for before another one is called for a probe.
	calledFor = 5 * time.Second
	// unknownAfter is how long after a probe was due the state of a destination for which no row
	// waits is forgotten.
	unknownAfter = time.Minute
	// maxRows bounds the memory of rows of one destination. Further ones return when they are due.
	maxRows = 1_000_000
)

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

// Postpone records that a row waits for the destination.
func (b *Book) Postpone(to string, row Row) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entry(to)
	if b.prune(e); e.rows.len() >= maxRows {
		return
	}
	if e.oldest.IsZero() || row.Stored.Before(e.oldest) {
		e.oldest = row.Stored
	}
	w := waitingRow{handle: row.Handle, due: row.Due.UnixNano()}
	if row.Audit {
		w.class = 1
	}
	if row.Handle == "" {
		heap.Push(&e.rows.fixed, w)
	} else {
		heap.Push(&e.rows.callable, w)
	}
	e.rows.count[w.class]++
	b.waiting[w.class]++
	b.signal()
}

// Waiting returns the number of rows that wait for destinations: those that have audit copies
// alone, and others.
func (b *Book) Waiting() (others, audit int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.entries {
		b.prune(e)
	}
	return b.waiting[0], b.waiting[1]
}

// Call returns the handles of rows that have to return before they are due: a portion for each
// destination that answers again, and one for each whose probe is due. It forgets the state of
// destinations to which nothing has been sent since their probe was due, and returns these states.
// left reports whether Call may return more later.
func (b *Book) Call() (handles []string, forgotten []State, left bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	for to, e := range b.entries {
		b.prune(e)
		switch {
		case e.kind == Well && e.slow == 0 && !e.trial:
			handles = b.take(e, portion, handles)
		case e.kind != Well && !e.trial && !now.Before(e.next) && now.Sub(e.called) >= calledFor:
			e.called = now
			handles = b.take(e, 1, handles)
		}
		if e.kind != Well && !e.trial && e.rows.len() == 0 && now.Sub(e.next) > unknownAfter {
			forgotten = append(forgotten, e.state(to))
			e.kind, e.strikes, e.pause, e.err = Well, 0, 0, nil
		}
		left = left || len(e.rows.callable) > 0 || e.kind != Well
		b.tidy(to, e)
	}
	return handles, forgotten, left
}

// CallAll returns the handles of all rows, which wait no longer: for a relay that ends, so that
// other processes receive them, and call them when their destination answers.
func (b *Book) CallAll() (handles []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for to, e := range b.entries {
		handles = b.take(e, len(e.rows.callable), handles)
		b.tidy(to, e)
	}
	return handles
}

// take removes up to n rows, and appends their handles. Called with mu held.
func (b *Book) take(e *entry, n int, handles []string) []string {
	for ; n > 0 && len(e.rows.callable) > 0; n-- {
		handles = append(handles, b.pop(e, &e.rows.callable))
	}
	return handles
}

// prune removes the rows that are due: the relay of some process receives them. Called with mu
// held.
func (b *Book) prune(e *entry) {
	now := time.Now().UnixNano()
	for _, h := range []*byDue{&e.rows.callable, &e.rows.fixed} {
		for len(*h) > 0 && (*h)[0].due <= now {
			b.pop(e, h)
		}
	}
}

// pop removes the row that is due first, and returns its handle. Called with mu held.
func (b *Book) pop(e *entry, h *byDue) (handle string) {
	row := heap.Pop(h).(waitingRow) //nolint:errcheck // it holds nothing else
	e.rows.count[row.class]--
	b.waiting[row.class]--
	if e.rows.len() == 0 && e.kind == Well {
		e.oldest = time.Time{}
	}
	return row.handle
}

// Changed returns a channel that has an element when Call may return more than before.
func (b *Book) Changed() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.channel()
}

func (b *Book) channel() chan struct{} {
	if b.changed == nil {
		b.changed = make(chan struct{}, 1)
	}
	return b.changed
}

func (b *Book) signal() {
	select {
	case b.channel() <- struct{}{}:
	default:
	}
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

// Package destination keeps the state of each destination of the relay of an outbox: whether the
// destination answers, the time of the next probe, and the waiting stored messages. The package
// does no I/O.
package destination

import (
	"container/heap"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// AnswerWithin is the time after which an operation without an answer makes its destination
	// silent.
	AnswerWithin = 5 * time.Second
	// SlowAfter is the time after which the operations for a destination without an answer are sent
	// in calls of their own.
	SlowAfter = time.Second
)

// Kind is the reason why a destination is unwell. A greater kind takes precedence over a smaller
// kind.
type Kind int8

const (
	// Well means: the destination answers.
	Well Kind = iota
	// Full means: the destination refuses messages, and may accept messages later.
	Full
	// Busy means: the driver sends nothing to the destination at the moment.
	Busy
	// Unreachable means: calls for the destination fail without an answer.
	Unreachable
	// Silent means: the destination did not answer within [AnswerWithin].
	Silent
)

// String returns the kind as a part of a sentence about a destination.
func (k Kind) String() string {
	return [...]string{"answers", "is full", "takes no messages", "cannot be reached", "does not answer"}[k]
}

// pauses returns the first and the longest pause between two probes. If the driver has not sent the
// operation, no copy is left, so the pauses are shorter.
func (k Kind) pauses() (first, most time.Duration) {
	switch k {
	case Full:
		return time.Second, 30 * time.Second
	case Busy, Unreachable:
		return 5 * time.Second, time.Minute
	default:
		return 5 * time.Second, 5 * time.Minute
	}
}

// Way is how the operations for a destination are sent.
type Way int8

const (
	// Together means: in a call with operations for further destinations.
	Together Way = iota
	// Alone means: in a call for this destination alone. [Book.End] ends the call.
	Alone
	// Probe means: a single operation in a separate call. [Book.End] ends the call. All further
	// operations wait.
	Probe
	// Wait means: not now.
	Wait
)

const (
	// unreachableStrikes is how many calls in a row end without an answer before the destination is
	// unwell: the connection may have been lost and opened again between two calls.
	unreachableStrikes = 2
	// portion is the number of rows that are called at once when a destination answers again.
	portion = 1000
	// calledFor is the wait for a called row before a further row is called for a probe.
	calledFor = 5 * time.Second
	// unknownAfter is the time after a due probe until the state of a destination without rows is
	// forgotten.
	unknownAfter = time.Minute
	// maxRows bounds the memory of rows of a destination. Further rows return when the rows are due.
	maxRows = 1_000_000
	// maxEntries bounds the memory: replies may go to any number of destinations.
	maxEntries = 10_000
)

// Book is the state of all destinations. The methods are safe for concurrent use. The zero value
// knows no destination.
type Book struct {
	mu       sync.Mutex // guards the rest
	entries  map[string]*entry
	answered time.Time     // when a destination answered last
	changed  chan struct{} // nil before Changed is called
}

// entry is the state of a destination, unless the destination is just well.
type entry struct {
	kind    Kind
	strikes int  // calls in a row without an answer
	slow    int  // calls with a time over SlowAfter
	trial   bool // a separate call is running

	since time.Time // the begin of the state
	next  time.Time // when the next probe is due
	pause time.Duration
	err   error

	rows   rows
	oldest time.Time // when the oldest waiting row was stored
	called time.Time // when rows were called last
}

// Calm reports whether nothing is known of any destination: each is well.
func (b *Book) Calm() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.entries) == 0
}

// AllAnswered records the success of a call. While the book is calm, no destination has to be
// named.
func (b *Book) AllAnswered() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answered = time.Now()
}

// Admit returns how the operations for a destination are sent now.
func (b *Book) Admit(to string) Way {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entries[to]
	switch {
	case e == nil, e.kind == Well && e.slow == 0 && !e.trial:
		return Together
	case e.trial, e.kind != Well && time.Now().Before(e.next):
		return Wait
	}
	e.trial = true
	if e.kind == Well {
		return Alone
	}
	return Probe
}

// End ends a call with the answer Alone or Probe of Admit, after the outcome was recorded.
func (b *Book) End(to string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.entries[to]; e != nil {
		e.trial = false
		b.tidy(to, e)
	}
}

// Slow records that a call for the destinations takes longer than SlowAfter. Fast ends the state.
func (b *Book) Slow(to []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, d := range to {
		b.entry(d).slow++
	}
}

// Fast records the end of a slow call.
func (b *Book) Fast(to []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, d := range to {
		if e := b.entries[d]; e != nil && e.slow > 0 {
			e.slow--
			b.tidy(d, e)
		}
	}
}

// Answered records that the destination has accepted or refused a message. Answered returns the
// state before the answer; the kind is Well if the destination was well.
func (b *Book) Answered(to string) State {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answered = time.Now()
	e := b.entries[to]
	if e == nil {
		return State{}
	}
	was := e.state(to)
	e.kind, e.strikes, e.slow, e.pause, e.err = Well, 0, 0, 0, nil
	b.tidy(to, e)
	b.signal()
	return was
}

// Failed records that a call for the destination failed. Failed reports whether the destination is
// unwell, and whether the state begins with this call. If the destination is not unwell, the
// operations are tried again soon.
func (b *Book) Failed(to string, kind Kind, err error) (unwell, begins bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, now := b.entry(to), time.Now()
	e.strikes++
	e.err = err
	first, most := kind.pauses()
	switch {
	case e.kind == Well && kind == Unreachable && e.strikes < unreachableStrikes:
		return false, false
	case e.kind == Well:
		e.since, e.pause, begins = now, first, true
	case !e.trial: // sent before the state began
		e.kind = max(e.kind, kind)
		return true, false
	default:
		e.pause = min(2*max(e.pause, first/2), most)
	}
	e.kind = kind
	e.next = now.Add(e.pause)
	if kind == Unreachable && !b.answered.After(e.since) {
		e.next = now.Add(first) // the broker may be away, and nothing was sent
	}
	b.signal()
	return true, begins
}

// Unwell reports whether the destination is unwell.
func (b *Book) Unwell(to string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entries[to]
	return e != nil && e.kind != Well
}

// Pause returns for how long a row for the destination is postponed: until after the next probe.
// The pauses of rows differ, so that many of them do not return at once.
func (b *Book) Pause(to string) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	pause := AnswerWithin
	if e := b.entries[to]; e != nil && e.kind != Well {
		pause = max(e.pause, time.Until(e.next))
	}
	return pause + rand.N(pause/2)
}

// State is the state of an unwell destination.
type State struct {
	Destination string
	Kind        Kind
	Since       time.Time
	Err         error
	// Rows wait for the destination, and Audit of them have audit copies alone. Oldest is when the
	// first was stored.
	Rows, Audit int64
	Oldest      time.Time
}

func (e *entry) state(to string) State {
	return State{
		Destination: to, Kind: e.kind, Since: e.since, Err: e.err,
		Rows: e.rows.count[0] + e.rows.count[1], Audit: e.rows.count[1], Oldest: e.oldest,
	}
}

// States returns each destination that is unwell or has waiting rows, sorted by name.
func (b *Book) States() []State {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []State
	for to, e := range b.entries {
		if e.prune(); e.kind != Well || e.rows.len() > 0 {
			all = append(all, e.state(to))
		}
	}
	slices.SortFunc(all, func(x, y State) int { return strings.Compare(x.Destination, y.Destination) })
	return all
}

// entry returns the entry of a destination. Called with mu held.
func (b *Book) entry(to string) *entry {
	e := b.entries[to]
	if e == nil {
		if b.entries == nil {
			b.entries = map[string]*entry{}
		}
		if len(b.entries) >= maxEntries {
			b.forgetOne()
		}
		e = new(entry)
		b.entries[to] = e
	}
	return e
}

// forgetOne makes room for an entry. Called with mu held.
func (b *Book) forgetOne() {
	for to, e := range b.entries {
		if !e.trial && e.slow == 0 {
			delete(b.entries, to)
			return
		}
	}
}

// tidy removes an entry without content. Called with mu held.
func (b *Book) tidy(to string, e *entry) {
	if e.kind == Well && e.strikes == 0 && e.slow == 0 && !e.trial && e.rows.len() == 0 {
		delete(b.entries, to)
	}
}

// Postpone records that a row waits for the destination.
func (b *Book) Postpone(to string, row Row) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entry(to)
	if e.prune(); e.rows.len() >= maxRows {
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
	b.signal()
}

// Waiting returns the number of waiting rows: with audit copies alone, and all further rows.
func (b *Book) Waiting() (others, audit int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.entries {
		e.prune()
		others += e.rows.count[0]
		audit += e.rows.count[1]
	}
	return others, audit
}

// Call returns the handles of rows that have to return before the rows are due: a portion for each
// destination that answers again, and a single row for each due probe. Call forgets the state of
// destinations without a send since their probe was due, and returns these states. left reports
// whether Call may return more later.
func (b *Book) Call() (handles []string, forgotten []State, left bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	for to, e := range b.entries {
		e.prune()
		switch {
		case e.kind == Well && e.slow == 0 && !e.trial:
			handles = e.take(portion, handles)
		case e.kind != Well && !e.trial && !now.Before(e.next) && now.Sub(e.called) >= calledFor:
			e.called = now
			handles = e.take(1, handles)
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

// CallAll returns the handles of all rows, and no row waits any longer. CallAll is for the end of a
// relay: further processes receive the rows, and call the rows when the destination answers.
func (b *Book) CallAll() (handles []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for to, e := range b.entries {
		handles = e.take(len(e.rows.callable), handles)
		b.tidy(to, e)
	}
	return handles
}

// take removes up to n rows, and appends their handles. Called with mu held.
func (e *entry) take(n int, handles []string) []string {
	for ; n > 0 && len(e.rows.callable) > 0; n-- {
		handles = append(handles, e.pop(&e.rows.callable))
	}
	return handles
}

// prune removes the rows that are due: the relay of some process receives them. Called with mu
// held.
func (e *entry) prune() {
	now := time.Now().UnixNano()
	for _, h := range []*byDue{&e.rows.callable, &e.rows.fixed} {
		for len(*h) > 0 && (*h)[0].due <= now {
			e.pop(h)
		}
	}
}

// pop removes the row that is due first, and returns its handle. Called with mu held.
func (e *entry) pop(h *byDue) (handle string) {
	row := heap.Pop(h).(waitingRow) //nolint:errcheck // it holds nothing else
	e.rows.count[row.class]--
	if e.rows.len() == 0 && e.kind == Well {
		e.oldest = time.Time{}
	}
	return row.handle
}

// Changed returns a channel that has an element when Call may return more than before. The caller
// calls Changed before the first Call.
func (b *Book) Changed() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.changed == nil {
		b.changed = make(chan struct{}, 1)
	}
	return b.changed
}

// signal does nothing before the first call of Changed. Called with mu held.
func (b *Book) signal() {
	select {
	case b.changed <- struct{}{}:
	default:
	}
}

// Row is a stored message that was postponed.
type Row struct {
	// Handle is the handle that makes the row visible before the row is due; "" if the row has no
	// handle.
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

func (h byDue) Len() int { return len(h) }

func (h byDue) Less(i, j int) bool { return h[i].due < h[j].due }

func (h byDue) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push implements [heap.Interface].
func (h *byDue) Push(row any) { *h = append(*h, row.(waitingRow)) } //nolint:errcheck // Postpone pushes rows

// Pop implements [heap.Interface].
func (h *byDue) Pop() any {
	last := (*h)[len(*h)-1]
	(*h)[len(*h)-1] = waitingRow{}
	*h = (*h)[:len(*h)-1]
	return last
}

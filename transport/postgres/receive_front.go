package postgres

import (
	"cmp"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// place is a row's position in the index by which rows are claimed.
type place struct {
	visibleAt pgtype.Timestamptz
	seq       int64
}

// everything is the place before all rows.
var everything = place{pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}, math.MinInt64}

func (p place) before(q place) bool {
	a, b := p.visibleAt, q.visibleAt
	return cmp.Or(cmp.Compare(a.InfinityModifier, b.InfinityModifier), a.Time.Compare(b.Time), cmp.Compare(p.seq, q.seq)) < 0
}

const (
	// fullLook is the time that a claim over the whole queue may take before claims begin at the
	// front.
	fullLook = 5 * time.Millisecond
	// fullLookShare bounds the share of time for slow claims over the whole queue: 1/fullLookShare.
	fullLookShare = 20
	// fullLookEvery bounds the wait of rows that become visible behind the front.
	fullLookEvery = 10 * time.Second
)

// front is the place at which the visible rows of a queue begin, as far as this process knows.
// While another transaction holds an old snapshot, the index keeps the entries of deleted rows, and
// a claim from the beginning reads all these entries. If the claim is slow, claims begin at the
// front, and only some cover the whole queue: a row may become visible behind the front, because
// visible_at is the time of a statement, not of the commit. The zero front covers the whole queue.
// A front is safe for concurrent use.
type front struct {
	mu    sync.Mutex // guards the rest
	at    place
	slow  bool      // the last claim over the whole queue was slow; a single one may be the machine's fault
	until time.Time // claims begin at the front until then; zero: not two in a row have been slow
}

// begin returns the place after which a claim begins, and reports whether the place is the
// beginning of the queue.
func (f *front) begin(now time.Time) (from place, all bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Before(f.until) {
		return f.at, false
	}
	if !f.until.IsZero() {
		f.until = now.Add(fullLookEvery) // one of the concurrent claims is enough
	}
	return everything, true
}

// reached notes the place that a claim has reached, and the time that the server took.
func (f *front) reached(to place, all bool, took time.Duration, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case !all:
		if f.at.before(to) {
			f.at = to
		}
	case took <= fullLook:
		f.slow, f.until = false, time.Time{}
	case !f.slow:
		f.slow = true
	default:
		f.at, f.until = to, now.Add(min(fullLookShare*took, fullLookEvery))
	}
}

// reset has the next claims cover the whole queue, because the clock was set back.
func (f *front) reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at, f.slow, f.until = everything, false, time.Time{}
}

// look parses the row with which a claim reports its place and time, in the columns of a message's
// id and headers.
func look(id, headers string, tookMicros int32) (to place, took time.Duration, err error) {
	at, err := strconv.ParseInt(id, 10, 64)
	if err == nil {
		to.seq, err = strconv.ParseInt(headers, 10, 64)
	}
	to.visibleAt = pgtype.Timestamptz{Time: time.UnixMicro(at), Valid: true}
	return to, time.Duration(tookMicros) * time.Microsecond, err
}

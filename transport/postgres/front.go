package postgres

import (
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// place is where a row stands in the index by which rows are claimed.
type place struct {
	visibleAt pgtype.Timestamptz
	seq       int64
}

// everything is the place before all rows.
var everything = place{pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}, math.MinInt64}

func (p place) before(q place) bool {
	if p.visibleAt.InfinityModifier != q.visibleAt.InfinityModifier {
		return p.visibleAt.InfinityModifier < q.visibleAt.InfinityModifier
	}
	if c := p.visibleAt.Time.Compare(q.visibleAt.Time); c != 0 {
		return c < 0
	}
	return p.seq < q.seq
}

const (
	// fullLook is how long a look through the whole queue may take before claims begin behind the rows that were claimed.
	fullLook = 5 * time.Millisecond
	// fullLookShare bounds the time that goes into such slow looks: one of so many parts.
	fullLookShare = 20
	// fullLookEvery is how long rows may wait that became visible in the past, behind the front.
	fullLookEvery = 10 * time.Second
)

// front is where the visible rows of a queue begin, as far as this process knows. While another transaction holds an old
// snapshot, the index keeps the entries of all messages that have passed, and a claim from the beginning walks through them. Where
// that takes long, claims begin at the front, and look at everything only now and then: a row may have
// become visible behind the front, as the time in visible_at is that of a statement, not of its commit.
// The zero front looks at everything. It is safe for concurrent use.
type front struct {
	mu    sync.Mutex
	at    place
	until time.Time // claims begin at the front for as long; zero: none has been slow
}

// begin returns the place behind which a claim is to look.
func (f *front) begin(now time.Time) (from place, all bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Before(f.until) {
		return f.at, false
	}
	if !f.until.IsZero() {
		f.until = now.Add(fullLookEvery) // one claim of those under way is enough
	}
	return everything, true
}

// reached says that a claim has looked up to a place, and how long the server looked.
func (f *front) reached(to place, all bool, took time.Duration, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case !all:
		if f.at.before(to) {
			f.at = to
		}
	case took <= fullLook:
		f.until = time.Time{}
	default:
		f.at, f.until = to, now.Add(min(fullLookShare*took, fullLookEvery))
	}
}

// look is what a claim reports of itself, in the place of a message's id and headers.
func look(id, headers string, tookMicros int32) (to place, took time.Duration, err error) {
	at, err := strconv.ParseInt(id, 10, 64)
	if err == nil {
		to.seq, err = strconv.ParseInt(headers, 10, 64)
	}
	to.visibleAt = pgtype.Timestamptz{Time: time.UnixMicro(at), Valid: true}
	return to, time.Duration(tookMicros) * time.Microsecond, err
}

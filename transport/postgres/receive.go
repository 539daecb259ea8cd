package postgres

import (
	"cmp"
	"context"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
)

// claimer is the part of a store that claims rows and keeps their leases.
type claimer struct {
	*db
	clock dialect.Clock // of the server
}

// Claim implements [tablequeue.Queues].
func (cl *claimer) Claim(
	ctx context.Context, c tablequeue.Claim, into []tablequeue.Claimed,
) ([]tablequeue.Claimed, time.Duration, error) {
	var (
		row  tablequeue.Claimed
		next int64
		now  time.Time // of the server
	)
	t := cl.table(c.Queue)
	asked := time.Now()
	from, all := t.front.begin(asked)
	maxBytes := cmp.Or(c.MaxBytes, math.MaxInt64)
	rows, err := cl.query(ctx, cl.leases, t.claim, c.Limit, c.For.Microseconds(), c.Lease, c.Owner,
		from.visibleAt, from.seq, maxBytes)
	if err == nil {
		var due int64
		to := []any{&row.Seq, &row.ID, &row.Headers, &row.Body, &row.Count, &row.Expired, &due}
		_, err = pgx.ForEachRow(rows, to, func() error {
			if row.Seq != 0 {
				into = append(into, row)
				return nil
			}
			to, took, err := look(row.ID, row.Headers, int32(row.Count))
			t.front.reached(to, all, took, time.Now())
			if next, now = due, to.visibleAt.Time.Add(uncommitted); due < 0 {
				next, now = 0, time.UnixMicro(-due)
			}
			return err
		})
	}
	if err != nil {
		return into[:0], 0, cl.failed(err, "receive from queue %q", c.Queue)
	}
	if cl.clock.Follow(ctx, c.Queue, c.For, now, asked, time.Now()) && len(into) == 0 {
		next = 1
	}
	return into, time.Duration(next) * time.Microsecond, nil
}

// uncommitted is the time for which rows that were inserted or retried may not be committed yet, for
// the place in the report of a claim.
const uncommitted = 250 * time.Millisecond

// Renew implements [tablequeue.Queues].
func (cl *claimer) Renew(
	ctx context.Context, queue string, leases []tablequeue.Lease, d time.Duration,
) ([]bool, error) {
	seqs, ids := make(array[number], len(leases)), make(array[number], len(leases))
	lost := make([]bool, len(leases))
	for i, l := range leases {
		seqs[i], ids[i], lost[i] = number(l.Seq), number(l.ID), true
	}
	rows, err := cl.query(ctx, cl.renewals, cl.table(queue).renew, d.Microseconds(), seqs, ids)
	if err == nil {
		err = eachNumber(rows, func(n int64) { lost[n-1] = false })
	}
	return lost, cl.failed(err, "renew leases of queue %q", queue)
}

// Abandon implements [tablequeue.Queues].
func (cl *claimer) Abandon(ctx context.Context, queue, owner string, d time.Duration) error {
	_, err := cl.execute(ctx, cl.table(queue).abandon, owner, d.Microseconds())
	if code(err) == undefinedColumn { // handed over to NServiceBus
		return nil
	}
	return cl.failed(err, "abandon leases of queue %q", queue)
}

// AbandonClaims implements [tablequeue.Orphaner].
func (cl *claimer) AbandonClaims(
	ctx context.Context, queue string, leases []int64, d time.Duration,
) error {
	_, err := cl.execute(ctx, cl.table(queue).orphans, leases, d.Microseconds())
	return cl.failed(err, "abandon leases of queue %q", queue)
}

// Cancel implements [tablequeue.Queues].
func (cl *claimer) Cancel(ctx context.Context, queue string, seq int64) (bool, error) {
	tag, err := cl.execute(ctx, cl.table(queue).cancel, seq)
	if code(err) == undefinedColumn { // handed over to NServiceBus, with its delayed messages
		return false, nil
	}
	return tag.RowsAffected() > 0, cl.failed(err, "cancel message %d of queue %q", seq, queue)
}

// maxRestored bounds the rows of a statement that makes rows visible again.
const maxRestored = 10_000

// restore makes rows of a queue visible after the clock was set back.
func (cl *claimer) restore(ctx context.Context, queue string, step dialect.StepBack) (int64, error) {
	t := cl.table(queue)
	t.front.reset()
	by, leases := step.By.Microseconds(), step.Leases.Microseconds()
	tag, err := cl.execute(ctx, t.restore, step.Before, by, leases)
	return tag.RowsAffected(), err
}

// restoring returns the statement that makes rows of q visible if they were visible at the time $1,
// before the clock was set back by $2. Leases that last for more than $3 end earlier by $2.
func restoring(q string) string {
	return `UPDATE ` + q + ` SET visible_at = CASE WHEN lease_id IS NULL THEN now()
	ELSE visible_at - $2::bigint * interval '1 microsecond' END
WHERE ctid = ANY (ARRAY(SELECT ctid FROM ` + q + `
	WHERE visible_at > now() AND CASE WHEN lease_id IS NULL THEN visible_at <= $1::timestamptz
		ELSE visible_at > now() + $3::bigint * interval '1 microsecond' END
	ORDER BY visible_at, seq LIMIT ` + strconv.Itoa(maxRestored) + ` FOR UPDATE SKIP LOCKED))`
}

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

// hasten returns the statement that makes rows of t visible since the time of the oldest visible
// row.
func hasten(t *table) string {
	return `UPDATE ` + t.quoted + ` SET visible_at = least(now(), (SELECT min(visible_at) FROM ` + t.quoted + `))
WHERE seq = ANY ($1::bigint[]) AND lease_id IS NULL AND visible_at > now()`
}

// Hasten implements [tablequeue.Hastener].
func (cl *claimer) Hasten(ctx context.Context, queue string, seqs []int64) error {
	_, err := cl.execute(ctx, hasten(cl.table(queue)), seqs)
	return cl.failed(err, "make rows of queue %q visible", queue)
}

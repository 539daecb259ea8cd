package tablequeue

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

// maxExpired bounds how many batches of expired rows one claim removes: there may be a million of
// them.
const maxExpired = 20

// claimGrace is how long a claim may still take when the receiver's context has ended.
const claimGrace = time.Second

// claim leases rows. When ctx ends it waits a little longer for the answer: rows that are leased
// without one would wait for the end of the lease.
func (r *receiver) claim(ctx context.Context, limit int, maxBytes int64) ([]transport.Delivery, time.Duration, error) {
	if ctx.Err() != nil {
		return nil, 0, context.Cause(ctx)
	}
	select {
	case <-r.done:
		return nil, 0, transport.ErrClosed
	default:
	}
	if err := r.conn.enter(); err != nil {
		return nil, 0, err
	}
	defer r.conn.calls.Done()
	bounded, cancel := context.WithTimeout(r.conn.work, maxWait)
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		_ = backoff.Sleep(bounded, claimGrace)
		cancel()
	})()

	r.claimed.Store(time.Now().UnixNano())
	buf := r.rows.Get().(*[]Claimed) //nolint:errcheck // nothing else is in the pool
	defer r.rows.Put(buf)
	r.releaseOrphans(bounded)
	claim := Claim{
		Queue: r.queue, Limit: limit, MaxBytes: maxBytes,
		Lease: 1 + rand.Int64N(1<<62), For: r.conn.cfg.Lease, Owner: r.conn.owner,
	}
	for range maxExpired {
		rows, next, err := r.conn.store.Claim(bounded, claim, (*buf)[:0])
		*buf = rows[:0]
		r.heard.Store(err == nil)
		if err != nil {
			r.orphaned(claim.Lease, err)
			if r.conn.work.Err() != nil { // Close has cancelled the claim
				err = fmt.Errorf("%w: %w", transport.ErrClosed, err)
			}
			return nil, 0, cmp.Or(context.Cause(ctx), err)
		}
		r.more.Store(claim.full(rows))
		ds, expired := r.deliveries(claim.Lease, rows)
		clear(rows)
		if len(expired) == 0 {
			return ds, next, nil
		}
		if err := r.conn.store.Flush(bounded, expired); err != nil && len(ds) == 0 {
			r.heard.Store(false)
			return nil, 0, err // a later claim removes them
		}
		if len(ds) > 0 {
			return ds, next, nil
		}
	}
	return nil, time.Nanosecond, nil // the next claim continues
}

// full reports whether the claim has probably left rows: it has as many as it may, or half of the
// bytes.
func (c *Claim) full(rows []Claimed) bool {
	bytes := int64(0)
	for i := range rows {
		bytes += int64(len(rows[i].Headers) + len(rows[i].Body))
	}
	return len(rows) >= c.Limit || c.MaxBytes > 0 && bytes >= c.MaxBytes/2
}

// maxOrphans bounds the claims that are remembered while their answers keep getting lost.
const maxOrphans = 100

// orphaned notes a claim that failed and may have leased rows.
func (r *receiver) orphaned(lease int64, err error) {
	if r.conn.store.Classify(err) != Unknown {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.orphans) < maxOrphans {
		r.orphans = append(r.orphans, lease)
	}
}

// releaseOrphans makes the rows of such claims visible again. When it fails, they wait for the end
// of their lease.
func (r *receiver) releaseOrphans(ctx context.Context) {
	r.mu.Lock()
	leases := r.orphans
	r.orphans = nil
	r.mu.Unlock()
	if store, ok := r.conn.store.(Orphaner); ok && len(leases) > 0 {
		if err := store.AbandonClaims(ctx, r.queue, leases, r.conn.cfg.Lease); err == nil {
			r.conn.wakes.announce(r.queue)
		}
	}
}

// deliveries returns a delivery for each row, in the order of their seq, and units that remove
// expired rows.
func (r *receiver) deliveries(lease int64, rows []Claimed) (ds []transport.Delivery, expired []*Unit) {
	slices.SortFunc(rows, func(a, b Claimed) int { return cmp.Compare(a.Seq, b.Seq) })
	ds = make([]transport.Delivery, 0, len(rows))
	for i := range rows {
		l := Lease{Seq: rows[i].Seq, ID: lease}
		if rows[i].Expired {
			expired = append(expired, &Unit{Verb: Delete, Queue: r.queue, Lease: l})
			continue
		}
		ds = append(ds, r.delivery(l, &rows[i]))
	}
	return ds, expired
}

func (r *receiver) delivery(lease Lease, row *Claimed) transport.Delivery {
	var m transport.Message
	message(&m, row)
	return r.newDelivery(lease, row.Count, m)
}

func (r *receiver) newDelivery(lease Lease, count int, m transport.Message) *delivery {
	d := &delivery{conn: r.conn, queue: r.queue, lease: lease, count: count, msg: m}
	if _, ok := r.conn.store.(Foreign); ok {
		d.forward()
	}
	return d
}

// NativeHeaders is the name in Message.Native of the header text of a row that cannot be decoded.
// Copies of the message keep the text in [header.UndecodableHeaders].
const NativeHeaders = "headers"

// message sets m to the content of a row. Its id is that in the headers, and that of the column
// without one.
func message(m *transport.Message, row *Claimed) {
	m.ID = row.ID
	m.NativeID = strconv.FormatInt(row.Seq, 10)
	m.Body = row.Body
	headers, err := header.ParseJSON(row.Headers)
	if err != nil {
		m.Undecodable = fmt.Errorf("message %d: %w", row.Seq, err)
		m.Native = map[string]string{NativeHeaders: row.Headers}
		m.Headers.Set(header.UndecodableHeaders, header.FormatUndecodable(row.Headers))
		return
	}
	m.Headers = headers
	if id := headers.Get(header.MessageID); id != "" {
		m.ID = id
	}
}

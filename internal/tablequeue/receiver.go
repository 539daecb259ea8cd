package tablequeue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

var (
	_ transport.Receiver = (*receiver)(nil)
	_ transport.Renewer  = (*receiver)(nil)
)

// How long an empty queue is left alone: the pause doubles from the first to the
// second. While notifications arrive, polling is only there for what they miss.
const (
	firstPause        = 2 * time.Millisecond
	firstPauseHearing = 32 * time.Millisecond
	maxPauseHearing   = time.Second
)

// claimGrace is how long a claim may still take when the receiver's context has ended.
const claimGrace = time.Second

// receiver claims rows of one queue.
type receiver struct {
	conn  *Conn
	queue string
	woken chan struct{} // holds a token when there may be new rows
	turn  chan struct{} // holds a token while a Receive waits: one is enough to poll
	done  chan struct{} // closed by Close
	once  sync.Once
	rows  sync.Pool // of *[]Claimed

	mu      sync.Mutex // guards orphans
	orphans []int64    // lease numbers of claims whose answer was lost
}

func newReceiver(c *Conn, queue string) *receiver {
	r := &receiver{
		conn:  c,
		queue: queue,
		woken: make(chan struct{}, 1),
		turn:  make(chan struct{}, 1),
		done:  make(chan struct{}),
	}
	r.rows.New = func() any { return new([]Claimed) }
	c.wakes.add(r)
	return r
}

// Window implements [transport.Receiver]: nothing is held beyond what Receive returned.
func (r *receiver) Window(int) {}

// Close implements [transport.Receiver].
func (r *receiver) Close() error {
	r.once.Do(func() {
		r.conn.wakes.remove(r)
		close(r.done)
	})
	return nil
}

// Receive implements [transport.Receiver]. It looks at once; while there is nothing it
// looks again after pauses that grow, when a row is due, and when it is woken.
func (r *receiver) Receive(ctx context.Context, limit int) ([]transport.Delivery, error) {
	limit = min(limit, maxReceive)
	ds, _, err := r.claim(ctx, limit)
	if len(ds) > 0 || err != nil {
		return ds, err
	}
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-r.done:
		return nil, transport.ErrClosed
	}
	return r.poll(ctx, limit)
}

func (r *receiver) poll(ctx context.Context, limit int) ([]transport.Delivery, error) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for pause := time.Duration(0); ; {
		ds, next, err := r.claim(ctx, limit)
		if len(ds) > 0 || err != nil {
			return ds, err
		}
		pause = r.longer(pause)
		timer.Reset(untilDue(pause, next))
		select {
		case <-timer.C:
		case <-r.woken:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-r.conn.life.Done():
			return nil, transport.ErrClosed
		case <-r.done:
			return nil, transport.ErrClosed
		}
	}
}

// longer is the pause after pause.
func (r *receiver) longer(pause time.Duration) time.Duration {
	first, most := firstPause, r.conn.cfg.Poll
	if r.conn.wakes.hearing.Load() {
		first, most = firstPauseHearing, maxPauseHearing
	}
	return min(max(first, 2*pause), most)
}

// untilDue is pause, or less when the next row is visible earlier. A row due in next
// is not due yet after exactly that on a clock that is coarser.
func untilDue(pause, next time.Duration) time.Duration {
	if next <= 0 {
		return pause
	}
	return min(pause, next+time.Millisecond)
}

func (r *receiver) wakeUp() {
	select {
	case r.woken <- struct{}{}:
	default:
	}
}

// claim leases rows. It does not break off at once when ctx ends, because rows might then have
// been leased to nobody, until the lease runs out: a claim takes milliseconds.
func (r *receiver) claim(ctx context.Context, limit int) ([]transport.Delivery, time.Duration, error) {
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

	buf := r.rows.Get().(*[]Claimed)
	defer r.rows.Put(buf)
	r.giveBackOrphans(bounded)
	claim := Claim{
		Queue: r.queue,
		Limit: limit,
		Lease: 1 + rand.Int64N(1<<62),
		For:   r.conn.cfg.Lease,
		Owner: r.conn.owner,
	}
	for {
		rows, next, err := r.conn.store.Claim(bounded, claim, (*buf)[:0])
		*buf = rows[:0]
		if err != nil {
			r.orphaned(claim.Lease, err)
			return nil, 0, cmp.Or(context.Cause(ctx), err)
		}
		ds, expired := r.deliveries(claim.Lease, rows)
		clear(rows)
		if len(expired) == 0 {
			return ds, next, nil
		}
		if err := r.conn.store.Flush(bounded, expired); err != nil && len(ds) == 0 {
			return nil, 0, err // they are handed out again, and expired again
		}
		if len(ds) > 0 {
			return ds, next, nil
		}
	}
}

// maxOrphans bounds what is remembered while a database keeps breaking off.
const maxOrphans = 100

// orphaned remembers a claim that may have leased rows although it failed.
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

// giveBackOrphans makes the rows of such claims visible again. Where it fails, they wait
// for the end of their lease.
func (r *receiver) giveBackOrphans(ctx context.Context) {
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

// deliveries makes a delivery of each row, in the order they were sent, and units that
// remove those that have expired.
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
	d := new(txDelivery)
	d.conn, d.queue, d.lease, d.count = r.conn, r.queue, lease, row.Count
	message(&d.msg, row)
	if _, ok := r.conn.store.(Transactor); ok {
		return d
	}
	return &d.delivery
}

// NativeHeaders is the name in Message.Native of the header text of a row that could not be
// decoded.
const NativeHeaders = "headers"

// message sets m to what a row holds. Its id is the one in the headers; the column's
// where somebody inserted a row without.
func message(m *transport.Message, row *Claimed) {
	m.ID = row.ID
	m.NativeID = strconv.FormatInt(row.Seq, 10)
	m.Body = row.Body
	headers, err := header.ParseJSON(row.Headers)
	if err != nil {
		m.Undecodable = fmt.Errorf("message %d: %w", row.Seq, err)
		m.Native = map[string]string{NativeHeaders: row.Headers}
		return
	}
	m.Headers = headers
	if id := headers.Get(header.MessageID); id != "" {
		m.ID = id
	}
}

var errForeign = errors.New("renew: a delivery of another transport")

// Renew implements [transport.Renewer], with one statement for all. A delivery that is
// being settled at the time is left alone.
func (r *receiver) Renew(ctx context.Context, ds []transport.Delivery) []error {
	errs := make([]error, len(ds))
	leases := make([]Lease, 0, len(ds))
	indexes := make([]int, 0, len(ds))
	for i, d := range ds {
		own, ok := d.(interface{ leased() (Lease, bool) })
		if !ok {
			errs[i] = errForeign
			continue
		}
		if lease, held := own.leased(); held {
			leases, indexes = append(leases, lease), append(indexes, i)
		}
	}
	if len(leases) == 0 {
		return errs
	}
	lost, err := r.conn.renew(ctx, r.queue, leases)
	for k, i := range indexes {
		switch {
		case err != nil:
			errs[i] = err
		case lost[k]:
			errs[i] = transport.ErrLeaseLost
		}
	}
	return errs
}

func (c *Conn) renew(ctx context.Context, queue string, leases []Lease) (lost []bool, err error) {
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.calls.Done()
	for range conflicts {
		lost, err = c.store.Renew(ctx, queue, leases, c.cfg.Lease)
		if err == nil || c.store.Classify(err) != Conflict {
			break
		}
	}
	return lost, err
}

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
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

var (
	_ transport.Receiver     = (*receiver)(nil)
	_ transport.ByteReceiver = (*receiver)(nil)
	_ transport.Renewer      = (*receiver)(nil)
	_ transport.Listener     = (*receiver)(nil)
)

// The pauses between two polls of an empty queue: they double from the first to the longest. While
// notifications arrive, polling finds only rows that they miss.
const (
	firstPause        = 2 * time.Millisecond
	maxPause          = 500 * time.Millisecond
	firstPauseHearing = 32 * time.Millisecond
	maxPauseHearing   = time.Second
)

// claimEvery is the time after which a receiver that takes direct rows claims nevertheless: other
// rows may wait.
const claimEvery = 100 * time.Millisecond

// receiver claims rows of one queue.
type receiver struct {
	*core
	arrivals

	settler *settler
	turn    chan struct{} // holds a token while a Receive waits: one polls for all
	done    chan struct{} // closed by Close
	once    sync.Once
	rows    sync.Pool // of *[]Claimed

	claimed atomic.Int64 // when the last claim began, in nanoseconds since 1970; 0: the next Receive claims
	more    atomic.Bool  // the last claim has left rows
	heard   atomic.Bool  // the database has answered the last claim

	mu      sync.Mutex // guards orphans
	orphans []int64    // leases of claims whose answer was lost
}

func newReceiver(s *settler, queue string) *receiver {
	r := &receiver{
		core: s.core, settler: s, turn: make(chan struct{}, 1), done: make(chan struct{}),
		arrivals: arrivals{queue: queue, woken: make(chan struct{}, 1)},
	}
	r.direct.ready = make(chan struct{}, 1)
	r.rows.New = func() any { return new([]Claimed) }
	return r
}

// Close implements [transport.Receiver].
func (r *receiver) Close() error {
	r.once.Do(func() {
		r.wakes.remove(&r.arrivals)
		close(r.done)
	})
	return nil
}

// Listening implements [transport.Listener].
func (r *receiver) Listening() bool { return r.heard.Load() }

// Receive implements [transport.Receiver]. It returns direct rows, or claims at once. While the
// queue is empty it claims again after pauses that grow, when a row is due, and when it is woken.
func (r *receiver) Receive(ctx context.Context, limit int) ([]transport.Delivery, error) {
	return r.ReceiveBytes(ctx, limit, 0)
}

// ReceiveBytes implements [transport.ByteReceiver]: the claim itself is bounded.
func (r *receiver) ReceiveBytes(ctx context.Context, limit int, maxBytes int64) ([]transport.Delivery, error) {
	limit = min(limit, maxReceive)
	if ds := r.receiveDirect(ctx, limit, maxBytes); len(ds) > 0 {
		return ds, nil
	}
	ds, _, err := r.claim(ctx, limit, maxBytes)
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
	return r.poll(ctx, limit, maxBytes)
}

func (r *receiver) poll(ctx context.Context, limit int, maxBytes int64) ([]transport.Delivery, error) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for pause := time.Duration(0); ; {
		if ds := r.takeDirect(limit, maxBytes); len(ds) > 0 {
			return ds, nil
		}
		ds, next, err := r.claim(ctx, limit, maxBytes)
		if len(ds) > 0 || err != nil {
			return ds, err
		}
		first, most := firstPause, maxPause
		if r.wakes.hearing.Load() {
			first, most = firstPauseHearing, maxPauseHearing
		}
		pause = min(max(first, 2*pause), most)
		wait := pause
		if next > 0 { // a little later, for clocks that are coarser than the database's
			wait = min(pause, next+time.Millisecond)
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-r.woken:
		case <-r.direct.ready:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-r.life.Done():
			return nil, transport.ErrClosed
		case <-r.done:
			return nil, transport.ErrClosed
		}
	}
}

// Window implements [transport.Receiver]: at most n messages that this process stores for the queue
// wait for Receive. There is no prefetch from the database.
func (r *receiver) Window(n int) {
	if !r.cfg.LeasedInserts {
		return
	}
	r.direct.mu.Lock()
	defer r.direct.mu.Unlock()
	r.direct.most = n
}

// receiveDirect returns direct rows, and waits for them until it is time to claim. Then it returns
// none. While claims leave rows, claims and direct rows take turns.
func (r *receiver) receiveDirect(ctx context.Context, limit int, maxBytes int64) []transport.Delivery {
	if !r.takesDirect() {
		return nil
	}
	if r.more.Load() && r.claimed.Swap(0) != 0 {
		return r.takeDirect(limit, maxBytes)
	}
	wait := time.Until(time.Unix(0, r.claimed.Load()).Add(claimEvery))
	timer := time.NewTimer(min(wait, claimEvery)) // the clock may have been set back
	defer timer.Stop()
	for {
		select { // before rows are taken, so that others do not wait for ever
		case <-timer.C:
			return nil
		case <-r.woken:
			return nil
		default:
		}
		if ds := r.takeDirect(limit, maxBytes); len(ds) > 0 {
			return ds
		}
		select {
		case <-r.direct.ready:
		case <-timer.C:
			return nil
		case <-r.woken:
			return nil
		case <-ctx.Done():
			return nil
		case <-r.life.Done():
			return nil
		case <-r.done:
			return nil
		}
	}
}

func (r *receiver) takesDirect() bool {
	r.direct.mu.Lock()
	defer r.direct.mu.Unlock()
	return r.direct.most > 0
}

// takeDirect takes direct rows. Those whose lease may end soon are released, for a claim of any
// process.
func (r *receiver) takeDirect(limit int, maxBytes int64) []transport.Delivery {
	fresh, old := r.direct.take(limit, maxBytes, time.Now().Add(-r.directLease()/2))
	if len(old) > 0 {
		units := make([]*Unit, len(old))
		for i, lease := range old {
			units[i] = &Unit{Verb: Release, Queue: r.queue, Lease: lease}
		}
		ctx, cancel := context.WithTimeout(r.work, maxWait)
		defer cancel()
		// Where that fails, they are claimed when their leases end.
		_ = r.call(ctx, nil, func(ctx context.Context) error {
			return r.store.Queues.Flush(ctx, units)
		})
	}
	return fresh
}

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
	if err := r.enter(); err != nil {
		return nil, 0, err
	}
	defer r.calls.Done()
	bounded, cancel := context.WithTimeout(r.work, maxWait)
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
		Lease: 1 + rand.Int64N(1<<62), For: r.cfg.Lease, Owner: r.owner,
	}
	for range maxExpired {
		rows, next, err := r.store.Queues.Claim(bounded, claim, (*buf)[:0])
		*buf = rows[:0]
		r.heard.Store(err == nil)
		if err != nil {
			r.orphaned(claim.Lease, err)
			if r.work.Err() != nil { // Close has cancelled the claim
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
		if err := r.store.Queues.Flush(bounded, expired); err != nil && len(ds) == 0 {
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
	if r.store.Classify(err) != Unknown {
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
	if r.store.Orphaner == nil || len(leases) == 0 {
		return
	}
	if err := r.store.Orphaner.AbandonClaims(ctx, r.queue, leases, r.cfg.Lease); err == nil {
		r.wakes.announce(r.queue)
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
	return r.settler.newDelivery(r.queue, lease, row.Count, m)
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

var errForeign = errors.New("renew: a delivery of another transport")

// leaser is a delivery of this engine. leased returns its lease, and reports whether to renew it.
type leaser interface{ leased() (Lease, bool) }

// Renew implements [transport.Renewer] with one statement, if no row is locked. It skips a delivery
// that is being settled, or whose transaction has locked its row, and returns nil for it: settling
// fails by itself where the lease is lost, and renewing the row at the same time could lock rows in
// another order.
func (r *receiver) Renew(ctx context.Context, ds []transport.Delivery) []error {
	r.settler.renewing.RLock()
	defer r.settler.renewing.RUnlock()
	errs := make([]error, len(ds))
	leases := make([]Lease, 0, len(ds))
	indexes := make([]int, 0, len(ds))
	for i, d := range ds {
		own, ok := d.(leaser)
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
	w := renewal{
		core: r.core, queue: r.queue, leases: leases,
		lost: make([]bool, len(leases)), errs: make([]error, len(leases)),
	}
	if err := r.call(ctx, nil, func(ctx context.Context) error {
		w.renew(ctx, 0, len(leases))
		return nil
	}); err != nil {
		w.fail(0, len(leases), err)
	}
	for k, i := range indexes {
		switch {
		case w.errs[k] != nil:
			errs[i] = w.errs[k]
		case w.lost[k]:
			// A row that was settled during the statement is not lost.
			if _, held := ds[i].(leaser).leased(); held { //nolint:errcheck // those in leases are
				errs[i] = transport.ErrLeaseLost
			}
		}
	}
	return errs
}

// renewal renews leases of one queue. A row that another session has locked fails alone.
type renewal struct {
	*core

	queue  string
	leases []Lease
	lost   []bool
	errs   []error
	locked int // statements that have waited for a lock
}

// renewsLocked bounds these statements: one row of 200 is found in as many. If more rows are
// locked, all rest fail.
const renewsLocked = 9

// renew renews the leases with the indexes from start to end.
func (w *renewal) renew(ctx context.Context, start, end int) {
	err := w.again(func() error {
		lost, err := w.store.Queues.Renew(ctx, w.queue, w.leases[start:end], w.cfg.Lease)
		copy(w.lost[start:end], lost)
		return err
	})
	if err == nil {
		return
	}
	if w.store.Classify(err) == Locked {
		w.locked++
		if end-start > 1 && w.locked < renewsLocked {
			half := start + (end-start)/2
			w.renew(ctx, start, half)
			w.renew(ctx, half, end)
			return
		}
	}
	w.fail(start, end, err)
}

func (w *renewal) fail(start, end int, err error) {
	for i := start; i < end; i++ {
		w.errs[i] = err
	}
}

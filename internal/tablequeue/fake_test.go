package tablequeue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// fake is a dialect in memory. Tables exist when they are in rows; "bad" names are refused
// by Check. Its hooks are nil, or called before what they are named for.
type fake struct {
	mu     sync.Mutex
	rows   map[string][]*fakeRow
	subs   []Subscription
	seq    int64
	calls  []string // what was called, with its size
	closed bool

	onClaim    func() error
	afterClaim func() error
	onFlush    func(units []*Unit) error
	onRenew    func() error
	onLoad     func() error // of Subscriptions
	loads      int

	inboxes  map[string]*fakeInbox
	onFind   func() error // before FindHandled
	onForget func() error // before Forget

	deadConns int // tries to abandon that fail
}

type fakeRow struct {
	Row
	visible, expires time.Time
	count            int
	lease            int64
	owner            string
}

// Errors that Classify knows.
var (
	errRefused  = errors.New("fake: refused")
	errConflict = errors.New("fake: conflict")
	errUnknown  = errors.New("fake: connection broke")
	errAway     = errors.New("fake: database is away")
)

func newFake(queues ...string) *fake {
	f := &fake{rows: map[string][]*fakeRow{}, inboxes: map[string]*fakeInbox{}}
	for _, q := range queues {
		f.rows[q] = nil
	}
	return f
}

func (f *fake) parts() Store {
	return Store{
		Queues: f, Browsing: f, Topology: f, Subscriptions: f, Transactions: f, Inboxes: f,
		Classify: f.Classify, Close: f.Close, Orphaner: f,
	}
}

func (f *fake) called(format string, args ...any) {
	f.calls = append(f.calls, fmt.Sprintf(format, args...))
}

// callsOf is how often what begins with name was called.
func (f *fake) callsOf(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, c := range f.calls {
		if strings.HasPrefix(c, name) {
			n++
		}
	}
	return n
}

func (f *fake) Check(queue string) error {
	if strings.HasPrefix(queue, "bad") || queue == "" {
		return fmt.Errorf("fake: queue name %q", queue)
	}
	return nil
}

func (f *fake) exists(queue string) error {
	if _, ok := f.rows[queue]; !ok {
		return fmt.Errorf("fake: queue %q: %w", queue, transport.ErrNoQueue)
	}
	return nil
}

func (f *fake) Exists(_ context.Context, queue string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.exists(queue)
}

func (f *fake) Remove(_ context.Context, queues []string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, q := range queues {
		delete(f.rows, q)
		f.subs = slices.DeleteFunc(f.subs, func(s Subscription) bool { return s.Queue == q })
	}
	return nil
}

func (f *fake) Missing(_ context.Context, queues []string) ([]bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.called("missing %d", len(queues))
	missing := make([]bool, len(queues))
	for i, q := range queues {
		missing[i] = f.exists(q) != nil
	}
	return missing, nil
}

func (f *fake) Claim(ctx context.Context, c Claim, into []Claimed) ([]Claimed, time.Duration, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.called("claim %d", c.Limit)
	if f.onClaim != nil {
		if err := f.onClaim(); err != nil {
			return nil, 0, err
		}
	}
	if err := f.exists(c.Queue); err != nil {
		return nil, 0, err
	}
	if ctx.Err() != nil {
		return nil, 0, errUnknown
	}
	now := time.Now()
	var next time.Duration
	var size int64
	for _, r := range f.rows[c.Queue] {
		if wait := r.visible.Sub(now); wait > 0 {
			if next == 0 || wait < next {
				next = wait
			}
			continue
		}
		if len(into) == c.Limit {
			break
		}
		size += int64(len(r.Headers) + len(r.Body))
		if c.MaxBytes > 0 && len(into) > 0 && size > c.MaxBytes {
			break
		}
		r.count++
		r.lease, r.owner, r.visible = c.Lease, c.Owner, now.Add(c.For)
		into = append(into, Claimed{
			Seq: r.Seq, ID: r.ID, Headers: string(r.Headers), Body: r.Body, Count: r.count,
			Expired: !r.expires.IsZero() && !r.expires.After(now),
		})
	}
	slices.Reverse(into) // any order is allowed
	if f.afterClaim != nil {
		return nil, 0, f.afterClaim()
	}
	return into, next, nil
}

func (f *fake) Flush(_ context.Context, units []*Unit) error {
	f.mu.Lock()
	f.called("flush %d", len(units))
	f.mu.Unlock()
	if f.onFlush != nil { // not under the lock: it may take its time
		if err := f.onFlush(units); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, u := range units {
		for i := range u.Rows {
			if err := f.exists(u.Rows[i].Queue); err != nil {
				return err
			}
		}
		if u.Key != nil {
			if _, err := f.inbox(u.Inbox); err != nil {
				return err
			}
		}
	}
	for _, u := range units {
		f.apply(u)
	}
	return nil
}

func (f *fake) apply(u *Unit) {
	var r *fakeRow
	if u.Verb != Send && u.Verb != Record {
		if r = f.leased(u.Queue, u.Lease); r == nil {
			u.Lost = true
			return
		}
	}
	if u.Key != nil && !f.record(u) {
		u.Handled = true
		return
	}
	if r != nil {
		f.settle(u, r)
	}
	for i := range u.Rows {
		f.insert(&u.Rows[i])
		if r := &u.Rows[i]; r.Lease != 0 {
			rows := f.rows[r.Queue]
			row := rows[len(rows)-1]
			row.lease, row.owner, row.visible, row.count = r.Lease, u.LeaseOwner, time.Now().Add(u.LeaseFor), 1
			r.Seq = row.Seq
		}
	}
}

func (f *fake) settle(u *Unit, r *fakeRow) {
	r.lease, r.visible = 0, time.Now().Add(u.After)
	switch u.Verb {
	case Delete:
		f.rows[u.Queue] = slices.DeleteFunc(f.rows[u.Queue], func(other *fakeRow) bool { return other == r })
	case Release:
		r.count--
	case Retry, Send, Record:
	}
}

func (f *fake) insert(r *Row) {
	if r.Named() {
		f.rows[r.Queue] = slices.DeleteFunc(f.rows[r.Queue], func(other *fakeRow) bool { return other.Name == r.Name })
		if r.Removes {
			return
		}
	}
	f.seq++
	row := &fakeRow{Row: *r, visible: time.Now().Add(r.After)}
	row.Seq, row.Headers = f.seq, slices.Clone(r.Headers)
	if r.At.After(row.visible) {
		row.visible = r.At
	}
	if r.TTL > 0 {
		row.expires = row.visible.Add(r.TTL)
	}
	if r.WantSeq {
		r.Seq = f.seq
	}
	f.rows[r.Queue] = append(f.rows[r.Queue], row)
}

// usersTx is a caller's transaction.
type usersTx struct{ rows []Row }

func (f *fake) InsertIn(_ context.Context, tx any, rows []Row) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.called("insert in %d", len(rows))
	own, ok := tx.(*usersTx)
	if !ok {
		return fmt.Errorf("%T: want a *usersTx", tx)
	}
	for i := range rows {
		if err := f.exists(rows[i].Queue); err != nil {
			return err
		}
	}
	for i := range rows {
		f.seq++
		if rows[i].WantSeq {
			rows[i].Seq = f.seq
		}
		own.rows = append(own.rows, rows[i])
	}
	return nil
}

func (f *fake) leased(queue string, l Lease) *fakeRow {
	for _, r := range f.rows[queue] {
		if r.Seq == l.Seq && r.lease == l.ID {
			return r
		}
	}
	return nil
}

func (f *fake) Renew(_ context.Context, queue string, leases []Lease, d time.Duration) ([]bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.called("renew %d", len(leases))
	if f.onRenew != nil {
		if err := f.onRenew(); err != nil {
			return nil, err
		}
	}
	lost := make([]bool, len(leases))
	for i, l := range leases {
		r := f.leased(queue, l)
		if lost[i] = r == nil; !lost[i] {
			r.visible = time.Now().Add(d)
		}
	}
	return lost, nil
}

func (f *fake) Abandon(_ context.Context, queue, owner string, _ time.Duration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.called("abandon %s", queue)
	if f.deadConns > 0 {
		f.deadConns--
		return errAway
	}
	for _, r := range f.rows[queue] {
		if r.lease != 0 && r.owner == owner {
			r.lease, r.visible = 0, time.Now()
		}
	}
	return nil
}

func (f *fake) AbandonClaims(_ context.Context, queue string, leases []int64, _ time.Duration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.called("orphans %d", len(leases))
	for _, r := range f.rows[queue] {
		if r.lease != 0 && slices.Contains(leases, r.lease) {
			r.lease, r.visible = 0, time.Now()
		}
	}
	return nil
}

func (f *fake) Cancel(_ context.Context, queue string, seq int64) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := len(f.rows[queue])
	f.rows[queue] = slices.DeleteFunc(f.rows[queue], func(r *fakeRow) bool { return r.Seq == seq && r.count == 0 })
	return len(f.rows[queue]) < before, nil
}

func (f *fake) Last(_ context.Context, queue string) (last int64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.rows[queue] {
		last = max(last, r.Seq)
	}
	return last, nil
}

func (f *fake) Browse(_ context.Context, p Page) (found []Claimed, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.called("browse %d", p.Limit)
	for _, r := range f.rows[p.Queue] {
		if r.Seq > p.After && r.Seq <= p.Last && len(found) < p.Limit {
			found = append(found, Claimed{Seq: r.Seq, ID: r.ID, Headers: string(r.Headers), Body: r.Body, Count: r.count})
		}
	}
	return found, nil
}

func (f *fake) Purge(_ context.Context, queue string) (n int64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rows[queue] = slices.DeleteFunc(f.rows[queue], func(r *fakeRow) bool {
		due := !r.visible.After(time.Now())
		if due {
			n++
		}
		return due
	})
	return n, nil
}

func (f *fake) Take(ctx context.Context, u *Unit) error {
	f.mu.Lock()
	for _, r := range f.rows[u.Queue] {
		if r.Seq == u.Lease.Seq && !r.visible.After(time.Now()) {
			r.lease = u.Lease.ID
		}
	}
	f.mu.Unlock()
	return f.Flush(ctx, []*Unit{u})
}

func (f *fake) Install(_ context.Context, plan transport.Plan) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, q := range plan.Queues {
		f.rows[q.Name] = append(f.rows[q.Name], nil...)
	}
	for _, name := range plan.Inboxes {
		if f.inboxes[name] == nil {
			f.inboxes[name] = &fakeInbox{keys: map[[16]byte]fakeKey{}, forgotten: time.Now()}
		}
	}
	return nil
}

func (f *fake) List(context.Context) ([]string, error) { return nil, nil }

func (f *fake) Inspect(_ context.Context, queue string) (transport.QueueStats, error) {
	return transport.QueueStats{Name: queue, Ready: int64(f.count(queue))}, nil
}

func (f *fake) Subscribe(_ context.Context, queue string, types []string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range types {
		f.subs = append(f.subs, Subscription{t, queue})
	}
	return nil
}

func (f *fake) Unsubscribe(_ context.Context, queue string, types []string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.subs = slices.DeleteFunc(f.subs, func(s Subscription) bool {
		return s.Queue == queue && slices.Contains(types, s.Type)
	})
	return nil
}

func (f *fake) Subscriptions(context.Context) ([]Subscription, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.loads++
	if f.onLoad != nil {
		return nil, f.onLoad()
	}
	return slices.Clone(f.subs), nil
}

func (f *fake) Classify(err error) Class {
	switch {
	case errors.Is(err, errRefused), errors.Is(err, transport.ErrNoQueue):
		return Refused
	case errors.Is(err, errConflict):
		return Conflict
	case errors.Is(err, errUnknown):
		return Unknown
	case errors.Is(err, errAway):
		return Unavailable
	}
	return Failed
}

func (f *fake) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	return nil
}

func (f *fake) count(queue string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.rows[queue])
}

// wakingFake is a fake that notifies.
type wakingFake struct {
	*fake
	notified chan []string
	heard    chan string // what Listen hears; closing it breaks the connection
}

func newWakingFake(queues ...string) *wakingFake {
	return &wakingFake{newFake(queues...), make(chan []string, 100), make(chan string)}
}

func (f *wakingFake) parts() Store {
	s := f.fake.parts()
	s.Waker = f
	return s
}

func (f *wakingFake) Notify(_ context.Context, queues []string) error {
	slices.Sort(queues)
	f.notified <- queues
	return nil
}

func (f *wakingFake) Listen(ctx context.Context, ready func(), wake func(string)) error {
	f.mu.Lock()
	f.called("listen")
	heard := f.heard
	f.mu.Unlock()
	ready()
	for {
		select {
		case q, ok := <-heard:
			if !ok {
				return errAway
			}
			wake(q)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f *fake) Begin(context.Context) (StoreTx, error) { return &fakeTx{store: f}, nil }

type fakeTx struct {
	store      *fake
	rolledBack int
}

func (t *fakeTx) Complete(ctx context.Context, u *Unit) error {
	return t.store.Flush(ctx, []*Unit{u})
}

func (t *fakeTx) Rollback(context.Context) error {
	t.rolledBack++
	return nil
}

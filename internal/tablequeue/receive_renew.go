package tablequeue

import (
	"context"
	"errors"

	"github.com/holdfast-go/holdfast/transport"
)

var errForeign = errors.New("renew: a delivery of another transport")

// leaser is a delivery of this engine. leased returns its lease, and reports whether to renew it.
type leaser interface{ leased() (Lease, bool) }

// Renew implements [transport.Renewer] with one statement, if no row is locked. It skips a delivery
// that is being settled, or whose transaction has locked its row, and returns nil for it: settling
// fails by itself where the lease is lost, and renewing the row at the same time could lock rows in
// another order.
func (r *receiver) Renew(ctx context.Context, ds []transport.Delivery) []error {
	r.conn.renewing.RLock()
	defer r.conn.renewing.RUnlock()
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
		conn: r.conn, queue: r.queue, leases: leases,
		lost: make([]bool, len(leases)), errs: make([]error, len(leases)),
	}
	if err := r.conn.call(ctx, nil, func(ctx context.Context) error {
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
	conn   *Conn
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
	err := w.conn.again(func() error {
		lost, err := w.conn.store.Renew(ctx, w.queue, w.leases[start:end], w.conn.cfg.Lease)
		copy(w.lost[start:end], lost)
		return err
	})
	if err == nil {
		return
	}
	if w.conn.store.Classify(err) == Locked {
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

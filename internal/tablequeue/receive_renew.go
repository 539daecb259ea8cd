package tablequeue

import (
	"context"
	"errors"

	"github.com/holdfast-go/holdfast/transport"
)

var errForeign = errors.New("renew: a delivery of another transport")

// leaser is a delivery of this engine. leased returns its lease, and reports whether to renew it.
type leaser interface{ leased() (Lease, bool) }

// Renew implements [transport.Renewer] with one statement. It skips a delivery that is being settled, or whose
// transaction has locked its row, and returns nil for it: settling fails by itself where the lease is lost, and
// renewing the row at the same time could lock rows in another order.
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
	lost, err := ask(ctx, r.conn, nil, func(ctx context.Context) (lost []bool, err error) {
		err = r.conn.again(func() error {
			lost, err = r.conn.store.Renew(ctx, r.queue, leases, r.conn.cfg.Lease)
			return err
		})
		return lost, err
	})
	for k, i := range indexes {
		switch {
		case err != nil:
			errs[i] = err
		case lost[k]:
			// A row that was settled during the statement is not lost.
			if _, held := ds[i].(leaser).leased(); held { //nolint:errcheck // those in leases are
				errs[i] = transport.ErrLeaseLost
			}
		}
	}
	return errs
}

package inmemory

import "github.com/holdfast-go/holdfast/transport"

// withoutDelivery returns d without the optional interfaces in w. Keys are recorded in inboxes,
// which are installed, and in the mode with transactions: without an Installer or a Transactor
// there is no HandledRecorder.
func withoutDelivery(d *delivery, w Capability) transport.Delivery {
	type (
		C  = transport.Completer
		T  = transport.Transactor
		TR = interface {
			transport.Transactor
			transport.HandledRecorder
		}
		D = transport.DeadLetterer
	)
	if w&(Installer|Transactor) != 0 {
		w |= OutboxStore
	}
	switch w & (Completer | Transactor | DeadLetterer | OutboxStore) {
	case OutboxStore:
		return struct {
			held
			C
			T
			D
		}{d, d, d, d}
	case DeadLetterer:
		return struct {
			held
			C
			TR
		}{d, d, d}
	case DeadLetterer | OutboxStore:
		return struct {
			held
			C
			T
		}{d, d, d}
	case Completer:
		return struct {
			held
			TR
			D
		}{d, d, d}
	case Completer | OutboxStore:
		return struct {
			held
			T
			D
		}{d, d, d}
	case Completer | DeadLetterer:
		return struct {
			held
			TR
		}{d, d}
	case Completer | DeadLetterer | OutboxStore:
		return struct {
			held
			T
		}{d, d}
	case Transactor | OutboxStore:
		return struct {
			held
			C
			D
		}{d, d, d}
	case Transactor | DeadLetterer | OutboxStore:
		return struct {
			held
			C
		}{d, d}
	case Completer | Transactor | OutboxStore:
		return struct {
			held
			D
		}{d, d}
	case Completer | Transactor | DeadLetterer | OutboxStore:
		return struct{ held }{d}
	default:
		return d
	}
}

// withoutTx returns t without the optional interfaces in w.
func withoutTx(t *tx, w Capability) transport.Tx {
	if w&(Installer|OutboxStore) != 0 {
		return struct{ ownTx }{t}
	}
	return t
}

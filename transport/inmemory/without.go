package inmemory

import "github.com/holdfast-go/holdfast/transport"

// A type assertion must not find a capability that Transport.Without names. So the functions below return a struct
// that embeds only the other interfaces: Go needs one type for each set of them.

// withoutConn returns c without the optional interfaces in w.
func withoutConn(c *conn, w Capability) transport.Conn {
	type (
		Base = interface {
			transport.Conn
			transport.Canceler
			transport.Satellites
			transport.Browser
			transport.Purger
		}
		I = interface {
			transport.Installer
			transport.Verifier
			transport.SubscriptionVerifier
			transport.Remover
		}
		S = transport.Subscriber
		Q = transport.Inspector
	)
	switch w & (Installer | Subscriber | Inspector) {
	case Installer:
		return struct {
			Base
			S
			Q
		}{c, c, c}
	case Subscriber:
		return struct {
			Base
			I
			Q
		}{c, c, c}
	case Installer | Subscriber:
		return struct {
			Base
			Q
		}{c, c}
	case Inspector:
		return struct {
			Base
			I
			S
		}{c, c, c}
	case Installer | Inspector:
		return struct {
			Base
			S
		}{c, c}
	case Subscriber | Inspector:
		return struct {
			Base
			I
		}{c, c}
	case Installer | Subscriber | Inspector:
		return struct{ Base }{c}
	default:
		return c
	}
}

// withoutReceiver returns r without the optional interfaces in w: a Renewer if its deliveries are leased.
func withoutReceiver(r *receiver, leased bool, w Capability) transport.Receiver {
	type Base = transport.Receiver
	switch {
	case leased && w&ByteReceiver == 0:
		return renewer{r}
	case leased:
		return struct {
			Base
			transport.Renewer
		}{r, renewer{r}}
	case w&ByteReceiver == 0:
		return r
	default:
		return struct{ Base }{r}
	}
}

// withoutDelivery returns d without the optional interfaces in w.
func withoutDelivery(d *delivery, w Capability) transport.Delivery {
	type (
		C = transport.Completer
		T = transport.Transactor
		D = transport.DeadLetterer
	)
	switch w & (Completer | Transactor | DeadLetterer) {
	case Completer:
		return struct {
			held
			T
			D
		}{d, d, d}
	case Transactor:
		return struct {
			held
			C
			D
		}{d, d, d}
	case Completer | Transactor:
		return struct {
			held
			D
		}{d, d}
	case DeadLetterer:
		return struct {
			held
			C
			T
		}{d, d, d}
	case Completer | DeadLetterer:
		return struct {
			held
			T
		}{d, d}
	case Transactor | DeadLetterer:
		return struct {
			held
			C
		}{d, d}
	case Completer | Transactor | DeadLetterer:
		return struct{ held }{d}
	default:
		return d
	}
}

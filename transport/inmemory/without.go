package inmemory

import "github.com/holdfast-go/holdfast/transport"

// A capability that is taken away must not be found by a type assertion, so what is
// returned then is a struct of just the interfaces that are left: one case for
// each set. They are spelled out because Go has no shorter way to say it.

// withoutConn is c without the optional interfaces in w.
func withoutConn(c *conn, w Capability) transport.Conn {
	type (
		Base = interface {
			transport.Conn
			transport.Satellites
			transport.Browser
			transport.Purger
		}
		I = transport.Installer
		S = transport.Subscriber
		C = transport.Canceler
		Q = transport.Inspector
	)
	switch w & (Installer | Subscriber | Canceler | Inspector) {
	case Installer:
		return struct {
			Base
			S
			C
			Q
		}{c, c, c, c}
	case Subscriber:
		return struct {
			Base
			I
			C
			Q
		}{c, c, c, c}
	case Installer | Subscriber:
		return struct {
			Base
			C
			Q
		}{c, c, c}
	case Canceler:
		return struct {
			Base
			I
			S
			Q
		}{c, c, c, c}
	case Installer | Canceler:
		return struct {
			Base
			S
			Q
		}{c, c, c}
	case Subscriber | Canceler:
		return struct {
			Base
			I
			Q
		}{c, c, c}
	case Installer | Subscriber | Canceler:
		return struct {
			Base
			Q
		}{c, c}
	case Inspector:
		return struct {
			Base
			I
			S
			C
		}{c, c, c, c}
	case Installer | Inspector:
		return struct {
			Base
			S
			C
		}{c, c, c}
	case Subscriber | Inspector:
		return struct {
			Base
			I
			C
		}{c, c, c}
	case Installer | Subscriber | Inspector:
		return struct {
			Base
			C
		}{c, c}
	case Canceler | Inspector:
		return struct {
			Base
			I
			S
		}{c, c, c}
	case Installer | Canceler | Inspector:
		return struct {
			Base
			S
		}{c, c}
	case Subscriber | Canceler | Inspector:
		return struct {
			Base
			I
		}{c, c}
	case Installer | Subscriber | Canceler | Inspector:
		return struct{ Base }{c}
	default:
		return c
	}
}

// withoutReceiver is r without the optional interfaces in w; a Renewer where there are leases.
func withoutReceiver(r *receiver, leases bool, w Capability) transport.Receiver {
	type (
		Base = transport.Receiver
		N    = transport.Renewer
	)
	bytes := w&ByteReceiver == 0
	switch {
	case leases && bytes:
		return leased{r}
	case leases:
		return struct {
			Base
			N
		}{r, leased{r}}
	case bytes:
		return r
	default:
		return struct{ Base }{r}
	}
}

// withoutDelivery is d without the optional interfaces in w.
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

package inmemory

import "github.com/holdfast-go/holdfast/transport"

// A type assertion must not find a capability that Transport.Without names. So the functions of
// this package that begin with without return a struct that embeds only the other interfaces: Go
// needs one type for each set of them.

// withoutConn returns c without the optional interfaces in w. Inboxes and records are installed, so
// without an Installer there is no OutboxStore and no StateInspector.
func withoutConn(c *conn, w Capability) transport.Conn {
	type (
		Base = interface {
			transport.Conn
			transport.Canceler
			transport.Hastener
			transport.Checker
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
		IO = interface {
			I
			transport.OutboxStore
			transport.InboxInspector
			transport.StateInspector
		}
		S = transport.Subscriber
		Q = transport.Inspector
	)
	if w&Installer != 0 {
		w |= OutboxStore
	}
	switch w & (Installer | Subscriber | Inspector | OutboxStore) {
	case OutboxStore:
		return struct {
			Base
			I
			S
			Q
		}{c, c, c, c}
	case Inspector:
		return struct {
			Base
			IO
			S
		}{c, c, c}
	case Inspector | OutboxStore:
		return struct {
			Base
			I
			S
		}{c, c, c}
	case Subscriber:
		return struct {
			Base
			IO
			Q
		}{c, c, c}
	case Subscriber | OutboxStore:
		return struct {
			Base
			I
			Q
		}{c, c, c}
	case Subscriber | Inspector:
		return struct {
			Base
			IO
		}{c, c}
	case Subscriber | Inspector | OutboxStore:
		return struct {
			Base
			I
		}{c, c}
	case Installer | OutboxStore:
		return struct {
			Base
			S
			Q
		}{c, c, c}
	case Installer | Inspector | OutboxStore:
		return struct {
			Base
			S
		}{c, c}
	case Installer | Subscriber | OutboxStore:
		return struct {
			Base
			Q
		}{c, c}
	case Installer | Subscriber | Inspector | OutboxStore:
		return struct{ Base }{c}
	default:
		return c
	}
}

// withoutReceiver returns r without the optional interfaces in w: a Renewer if its deliveries are
// leased.
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

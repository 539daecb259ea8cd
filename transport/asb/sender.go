package asb

import (
	"context"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

// sender is the client library's, on a session, and shared by those who send at once. Closing it ends what they have under way: so
// one that is not to be used again is closed by the last of them.
type sender struct {
	*azservicebus.Sender
	of *session

	users   int  // guarded by the outlet's mu, as what follows
	retired bool // for nobody else to use
}

// borrow is a sender whose link is there, which the library makes with the first use. It is to be given back.
func (o *outlet) borrow(ctx context.Context) (*sender, error) {
	s, err := o.conn.sending.session(ctx)
	if err != nil {
		return nil, o.unsent(err)
	}
	if known := o.share(nil, s); known != nil {
		return known, nil
	}
	on, over := s.on(ctx)
	defer over()
	made, err := s.client.NewSender(o.entity, nil)
	if err != nil {
		return nil, o.unsent(s.lostIn(ctx, err))
	}
	own := &sender{Sender: made, of: s}
	if _, err = made.NewMessageBatch(on, nil); err != nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.retire(own)
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, o.unsent(s.lostIn(ctx, err))
	}
	return o.share(own, s), nil
}

// share is the present sender on a session, for one more user. Where there is none, it is own from now on.
func (o *outlet) share(own *sender, s *session) *sender {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.current != nil && o.current.of == s:
		o.retire(own)
	case own == nil:
		return nil
	default:
		o.retire(o.current)
		o.current = own
	}
	o.current.users++
	return o.current
}

// giveBack ends the use of a sender. One that is broken nobody else will use.
func (o *outlet) giveBack(s *sender, broken bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s.users--
	if broken && o.current == s {
		o.current = nil
	}
	if broken || s.retired {
		o.retire(s)
	}
}

// retire closes a sender behind the caller's back, once nobody uses it. Called with mu held.
func (o *outlet) retire(s *sender) {
	if s == nil {
		return
	}
	s.retired = true
	if s.users > 0 || o.closed { // what is left ends with the session
		return
	}
	o.old.Go(func() {
		ctx, cancel := context.WithTimeout(o.conn.ctx, closeTimeout)
		defer cancel()
		_ = s.Close(ctx) // as above
	})
}

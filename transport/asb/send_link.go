package asb

import (
	"context"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

// linkIdle is the time without a request after which a link is not used again. The service detaches
// it after 10 minutes, and the client library does not say whether a message on a detached link was
// sent: https://learn.microsoft.com/azure/service-bus-messaging/service-bus-amqp-troubleshoot
const linkIdle = 5 * time.Minute

// senderLink is the library's sender on a client, shared by concurrent requests. Closing it ends
// all of them, so one that is not to be used again is closed after the last.
type senderLink struct {
	*azservicebus.Sender
	of *client

	users   int       // guarded by the sender's mu, as the fields below
	retired bool      // not for new requests
	last    time.Time // when the last request ended
}

// acquire returns a link that is attached, for one request. The caller releases it.
func (s *sender) acquire(ctx context.Context) (*senderLink, error) {
	cl, err := s.conn.sending.client(ctx)
	if err != nil {
		return nil, s.unsent(err)
	}
	if l := s.share(nil, cl); l != nil {
		return l, nil
	}
	on, over := joined(ctx, cl.ctx)
	defer over()
	library, err := cl.NewSender(s.entity, nil)
	if err != nil {
		return nil, s.unsent(cl.cause(ctx, err))
	}
	own := &senderLink{Sender: library, of: cl}
	if _, err = library.NewMessageBatch(on, nil); err != nil { // the library attaches with the first request
		s.mu.Lock()
		defer s.mu.Unlock()
		s.retire(own)
		return nil, s.unsent(cl.cause(ctx, err))
	}
	return s.share(own, cl), nil
}

// share adds a user to the link on a client and returns it. If there is none, own becomes the link;
// with own nil, share returns nil.
func (s *sender) share(own *senderLink, cl *client) *senderLink {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.link; l != nil && l.users == 0 && time.Since(l.last) >= linkIdle {
		s.link = nil
		s.retire(l)
	}
	switch {
	case s.link != nil && s.link.of == cl:
		s.retire(own)
	case own == nil:
		return nil
	default:
		s.retire(s.link)
		s.link = own
	}
	s.link.users++
	return s.link
}

// release ends one use of a link. A broken link is not used again.
func (s *sender) release(l *senderLink, broken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.users--
	l.last = time.Now()
	if broken && s.link == l {
		s.link = nil
	}
	if broken || l.retired {
		s.retire(l)
	}
}

// retire closes a link in a goroutine, once it has no users. After close the client ends it. Called
// with mu held.
func (s *sender) retire(l *senderLink) {
	if l == nil {
		return
	}
	l.retired = true
	if l.users > 0 {
		return
	}
	s.closing.Go(func() {
		ctx, cancel := context.WithTimeout(s.conn.ctx, closeTimeout)
		defer cancel()
		_ = l.Close(ctx) // an error leaves it to the client
	})
}

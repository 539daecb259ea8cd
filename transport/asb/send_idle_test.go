package asb

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
)

// The service detaches a link that was idle for 10 minutes. The next send over that link would have
// an unknown outcome.
func TestASendAfterAnIdleTimeUsesANewLink(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	ns := brokertest.OwnServiceBusOf(t, brokertest.ServiceBusAzure)
	opened, err := (&Transport{ConnectionString: ns.ConnectionString, Administration: ns.Admin}).Open(ctx, transport.Env{Endpoint: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	c := opened.(*conn)
	if err := c.Install(ctx, transport.Plan{Queues: []transport.Queue{{Name: "in"}}}); err != nil {
		t.Fatal(err)
	}
	op := transport.Operation{Queue: "in", Message: &transport.Message{ID: "m", Body: []byte("body")}}
	send := func() *senderLink {
		if _, err := c.Dispatch(ctx, []transport.Operation{op}); err != nil {
			t.Error(err)
		}
		s, err := c.sender("in")
		if err != nil {
			t.Fatal(err)
		}
		return s.link
	}
	first := send()
	if send() != first {
		t.Error("each send has a link of its own")
	}
	s, err := c.sender("in")
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	first.last = time.Now().Add(-linkIdle)
	s.mu.Unlock()
	ns.Control.Detach("in", "amqp:link:detach-forced")
	if send() == first {
		t.Error("the link is used again after an idle time")
	}
}

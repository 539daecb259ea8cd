package asb

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
)

// The link over which a receiver asks whether the service answers may have ended as well, by a
// condition after which the client library goes on with the link. Messages are received
// nevertheless.
func TestAReceiverHearsOverANewLink(t *testing.T) {
	t.Parallel()
	for _, condition := range []string{
		"com.microsoft:server-busy", "com.microsoft:timeout", "com.microsoft:operation-cancelled",
		"amqp:not-found", "com.microsoft:entity-disabled", "amqp:unauthorized-access", // of an entity that is sound again
	} {
		t.Run(condition, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			ns := brokertest.OwnServiceBusOf(t, brokertest.ServiceBusAzure)
			c, err := (&Transport{ConnectionString: ns.ConnectionString, Administration: ns.Admin}).Open(ctx, transport.Env{Endpoint: "test"})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if err := c.(transport.Installer).Install(ctx, transport.Plan{Queues: []transport.Queue{{Name: "in"}}}); err != nil {
				t.Fatal(err)
			}
			r, err := c.OpenReceiver(ctx, transport.ReceiverOptions{Queue: "in"})
			if err != nil {
				t.Fatal(err)
			}
			ns.Control.Detach("in", condition) // the link of look
			r.(*receiver).heard.Store(false)   // as after a failure
			op := transport.Operation{Queue: "in", Message: &transport.Message{ID: "m", Body: []byte("body")}}
			if _, err := c.Dispatch(ctx, []transport.Operation{op}); err != nil {
				t.Fatal(err)
			}
			for {
				ds, err := r.Receive(ctx, 1)
				if len(ds) > 0 {
					if err := ds[0].Complete(ctx); err != nil {
						t.Error(err)
					}
					return
				}
				if ctx.Err() != nil {
					t.Fatalf("nothing is received: %v", err)
				}
			}
		})
	}
}

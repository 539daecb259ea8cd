package transport_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// A driver by itself. Endpoints do this for their users; tools that move messages do it themselves.
func Example() {
	ctx := context.Background()
	conn, err := (&inmemory.Transport{}).Open(ctx, transport.Env{Endpoint: "tool"})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	if installer, ok := conn.(transport.Installer); ok { // optional interfaces are found by type assertion
		if err := installer.Install(ctx, transport.Plan{Queues: []transport.Queue{{Name: "billing"}}}); err != nil {
			log.Fatal(err)
		}
	}
	_, err = conn.Dispatch(ctx, []transport.Operation{
		{Message: &transport.Message{ID: "1", Body: []byte("charge")}, Queue: "billing"},
	})
	if err != nil {
		log.Fatal(err)
	}
	receiver, err := conn.OpenReceiver(ctx, transport.ReceiverOptions{Queue: "billing"})
	if err != nil {
		log.Fatal(err)
	}
	deliveries, err := receiver.Receive(ctx, 10) // waits for one at least
	if err != nil {
		log.Fatal(err)
	}
	for _, d := range deliveries {
		fmt.Printf("%s: %s, attempt %d\n", d.Message().ID, d.Message().Body, d.Attempt().N)
		if err := d.Complete(ctx); err != nil {
			log.Fatal(err)
		}
	}
	// Output: 1: charge, attempt 1
}

// The error of Dispatch has the failed operations.
func ExampleDispatchError() {
	ctx := context.Background()
	conn, err := (&inmemory.Transport{}).Open(ctx, transport.Env{Endpoint: "tool"})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	_, err = conn.Dispatch(ctx, []transport.Operation{{Message: &transport.Message{ID: "1"}, Queue: "nowhere"}})
	fmt.Println(err)
	fmt.Println(errors.Is(err, transport.ErrNoQueue))
	// Output:
	// dispatch: 1 of 1 operations failed; operation 0: inmemory: queue "nowhere": no such queue
	// true
}

package inmemory_test

import (
	"context"
	"fmt"

	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

func Example() {
	ctx := context.Background()
	broker := &inmemory.Transport{}
	broker.CreateQueues("orders")
	conn, err := broker.Open(ctx, transport.Env{})
	if err != nil {
		panic(err)
	}
	defer conn.Close()

	_, err = conn.Dispatch(ctx, []transport.Operation{
		{Queue: "orders", Message: &transport.Message{ID: "1", Body: []byte("two lamps")}},
	})
	if err != nil {
		panic(err)
	}

	r, err := conn.OpenReceiver(ctx, transport.ReceiverOptions{Queue: "orders"})
	if err != nil {
		panic(err)
	}
	for range 2 {
		ds, err := r.Receive(ctx, 10)
		if err != nil {
			panic(err)
		}
		d := ds[0]
		fmt.Printf("attempt %d: %s\n", d.Attempt().N, d.Message().Body)
		if err := d.Retry(ctx); err != nil {
			panic(err)
		}
	}
	// Output:
	// attempt 1: two lamps
	// attempt 2: two lamps
}

// A capability that is taken away is not there for the endpoint to find.
func ExampleTransport_without() {
	broker := &inmemory.Transport{Without: inmemory.Subscriber | inmemory.Delay}
	conn, err := broker.Open(context.Background(), transport.Env{})
	if err != nil {
		panic(err)
	}
	defer conn.Close()

	_, publishes := conn.(transport.Subscriber)
	fmt.Println("publishes:", publishes)
	fmt.Println("delays:", conn.Limits().MaxDelay > 0)
	// Output:
	// publishes: false
	// delays: false
}

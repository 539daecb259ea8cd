package servicecontrol_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/servicecontrol"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// An endpoint with all reports. In production the queues are those of ServiceControl and Monitoring
// on the same broker.
func ExampleAttach() {
	broker := &inmemory.Transport{}
	broker.CreateQueues("Particular.ServiceControl", "Particular.Monitoring")

	cfg := endpoint.Config{Name: "Sales", Transport: broker, Install: true}
	err := servicecontrol.Attach(&cfg, servicecontrol.Config{
		HeartbeatQueue: "Particular.ServiceControl",
		CheckQueue:     "Particular.ServiceControl",
		MetricsQueue:   "Particular.Monitoring",
		Checks: []servicecontrol.Check{{
			ID: "Payment provider", Category: "Partners", Interval: time.Minute,
			Run: func(context.Context) error { return errors.New("its certificate expires tomorrow") },
		}},
	})
	if err != nil {
		log.Fatal(err)
	}
	sales, err := endpoint.New(cfg)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		showFirstCheck(ctx, broker)
		stop()
	}()
	if err := sales.Run(ctx); err != nil { // until ctx ends
		log.Fatal(err)
	}
	// Output: Sales: Payment provider failed: its certificate expires tomorrow
}

// showFirstCheck prints the first result of a check, as ServiceControl receives it.
func showFirstCheck(ctx context.Context, broker transport.Transport) {
	conn, err := broker.Open(ctx, transport.Env{})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	receiver, err := conn.OpenReceiver(ctx, transport.ReceiverOptions{Queue: "Particular.ServiceControl"})
	if err != nil {
		log.Fatal(err)
	}
	for {
		ds, err := receiver.Receive(ctx, 1)
		if err != nil {
			log.Fatal(err)
		}
		var result struct {
			EndpointName, CustomCheckID, FailureReason string
		}
		if err := json.Unmarshal(ds[0].Message().Body, &result); err != nil {
			log.Fatal(err)
		}
		if result.CustomCheckID != "" {
			fmt.Printf("%s: %s failed: %s\n", result.EndpointName, result.CustomCheckID, result.FailureReason)
			return
		}
	}
}

// A check is a function. It may call anything that the endpoint needs, within its time limit.
func ExampleCheck() {
	ping := func(context.Context) error { return nil } // such as (*sql.DB).PingContext

	check := servicecontrol.Check{
		ID: "Database answers", Category: "Storage",
		Interval: 30 * time.Second, Timeout: 5 * time.Second, Run: ping,
	}
	fmt.Println(check.Run(context.Background()))
	// Output: <nil>
}

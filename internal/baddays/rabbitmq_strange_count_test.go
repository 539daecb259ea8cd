package baddays_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

// strangeDeliveryCount sends messages with a delivery count of their sender's, as a program does
// that copies all headers of a message that was retried. They used to go to quarantine.
func strangeDeliveryCount(t *testing.T) outcome {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	url := brokertest.RabbitMQ(t)
	name, handled := brokertest.Name(t, "sales"), newRuns()
	counts := []int64{1, 3, 50, 1 << 40}
	runWorker(t, endpoint.Config{
		Name: name, Transport: &rabbitmq.Transport{URL: url}, Concurrency: 4,
		Recoverability: recoverability.Config{ErrorQueue: name + ".error", Immediate: 1},
	}, func(_ context.Context, s *endpoint.Session, w work) error {
		handled.count(s, w)
		return nil
	})
	p := newRawPublisher(t, url)
	for i, count := range counts {
		m := workMessage(i)
		m.Headers["x-delivery-count"] = count
		p.publish(name, m)
	}
	p.wait()
	end := time.Now()
	handled.wait(ctx, t, len(counts))
	normal := time.Since(end)
	if handled.most != 1 || handled.repeated() != 0 {
		t.Errorf("delivered %d times, %d of them handled again", handled.most, handled.repeated())
	}
	conn, err := (&rabbitmq.Transport{URL: url}).Open(ctx, transport.Env{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	awaitReady(ctx, t, conn, name+".quarantine", 0)
	return outcome{message: fmt.Sprintf("%d of %d were handled, as their first delivery", handled.len(), len(counts)), neighbours: "not concerned", normal: normal}
}

package baddays_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

// fullErrors is the day on which the error queue is full.
func fullErrors(t *testing.T) outcome {
	const bad, errorQueue = 50, "full-errors"
	n := size(300, 3000)
	url := brokertest.RabbitMQ(t)
	broker := &rabbitmq.Transport{URL: url}
	handled := newRuns()
	cfg := endpoint.Config{Name: "failing", Transport: broker, Concurrency: 8, Recoverability: recoverability.Config{
		ErrorQueue: errorQueue, Immediate: recoverability.None, Delayed: recoverability.None,
	}}
	runWorker(t, cfg, func(_ context.Context, s *endpoint.Session, w work) error {
		handled.count(s, w)
		if w.N < 0 {
			return errors.New("it fails each time")
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	conn, err := broker.Open(ctx, transport.Env{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	raw, out := rabbitChannel(t, url), newRawPublisher(t, url)
	rate := func(from int) time.Duration { // of n messages
		before, began := handled.len(), time.Now()
		for i := range n {
			out.publish("failing", workMessage(from+i))
		}
		out.wait()
		handled.wait(ctx, t, before+n)
		return time.Since(began)
	}
	usual := rate(1)
	if _, err := raw.QueueDelete(errorQueue, false, false, false); err != nil {
		t.Fatal(err)
	}
	args := amqp.Table{"x-queue-type": "quorum", "x-max-length": 10, "x-overflow": "reject-publish"}
	if _, err := raw.QueueDeclare(errorQueue, true, false, false, false, args); err != nil {
		t.Fatal(err)
	}
	fillers := 0
	for {
		_, err := conn.Dispatch(ctx, []transport.Operation{{Queue: errorQueue, Message: &transport.Message{ID: "filler"}}})
		if errors.Is(err, transport.ErrFull) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		fillers++
	}
	for i := range bad {
		out.publish("failing", workMessage(-1-i))
	}
	out.wait()
	handled.wait(ctx, t, n+bad)
	full := rate(1 + n)

	began, seen := time.Now(), map[string]int{}
	for _, m := range drained(t, conn, errorQueue, fillers+bad, 10*time.Minute) {
		seen[m.ID]++
		if strings.HasPrefix(m.ID, "work-") && m.Headers.Get(header.FailedQ) != "failing" {
			t.Errorf("%s failed in %q", m.ID, m.Headers.Get(header.FailedQ))
		}
	}
	o := outcome{
		message: "held, and in the error queue when that has room",
		neighbours: fmt.Sprintf("%d messages in %v, and in %v without the fault",
			n, full.Round(time.Millisecond), usual.Round(time.Millisecond)),
		normal: time.Since(began),
	}
	if len(seen) != bad+1 {
		t.Errorf("%d different messages in the error queue, want %d", len(seen), bad+1)
	}
	if twice := handled.repeated(); twice > 0 {
		t.Errorf("%d messages were handled more than once", twice)
	}
	return o
}

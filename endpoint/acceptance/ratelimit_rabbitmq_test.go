package acceptance_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

// An outage where the broker prefetches and counts released messages: messages are attempted more
// often than they have retries, and none is lost, given up or handled twice.
func TestRateLimitOnRabbitMQ(t *testing.T) {
	onBrokers(t, []string{"quorum"}, []string{"classic"}, func(t *testing.T, kind string) {
		broker := &rabbitmq.Transport{URL: brokertest.RabbitMQ(t), QueueType: rabbitmq.QueueType(kind)}
		rateLimitOn(t, broker, 20*time.Millisecond, 120)
	})
}

// An outage longer than the broker lets a message be held, which takes all of a channel back then.
func TestChaosRateLimitOutlastsConsumerTimeout(t *testing.T) {
	t.Parallel()
	brokertest.Fault(t)
	failures := 14 // each half a second after the one before: longer than the consumer timeout
	if os.Getenv("HOLDFAST_SOAK") != "" {
		failures = 100
	}
	node := brokertest.OwnRabbitMQ(t)
	set := func(name, value string) {
		node.Eval(fmt.Sprintf("application:set_env(rabbit, %s, %s).", name, value))
	}
	set("channel_tick_interval", "1000")
	set("consumer_timeout", "6000")
	t.Cleanup(func() { // to what they were: without a value the broker opens no channel any more
		set("channel_tick_interval", "60000")
		set("consumer_timeout", "1800000")
	})
	rateLimitOn(t, &rabbitmq.Transport{URL: node.URL, ConsumerTimeout: 6 * time.Second}, 500*time.Millisecond, failures)
}

// rateLimitOn has an outage of so many failures, with such a wait in between.
func rateLimitOn(t *testing.T, broker *rabbitmq.Transport, pause time.Duration, probes int) {
	const messages = 12
	ctx, cancel := context.WithTimeout(t.Context(), timeLimit)
	defer cancel()
	var down atomic.Bool
	down.Store(true)
	failed, handled := make(chan int, 10000), make(chan int, 10*messages)
	sent := make(chan struct{})
	var logs lockedBuffer
	var mu sync.Mutex
	var failures, count [messages]int
	queue, errors := brokertest.Name(t, "limited"), brokertest.Name(t, "error")
	cfg := endpoint.Config{
		Name: queue, Transport: broker, Concurrency: 4, Install: true, Logger: slog.New(slog.NewTextHandler(&logs, nil)),
		Messages: []endpoint.Message{endpoint.Command[work]("Limit.Work")},
		Handlers: []endpoint.Handler{endpoint.Handle(func(_ context.Context, s *endpoint.Session, m work) error {
			<-sent
			mu.Lock()
			defer mu.Unlock()
			if n := s.Attempt().N; failures[m.N] == 0 && n != 1 && broker.ConsumerTimeout == 0 { // else it was released
				t.Errorf("message %d has attempt %d without a failure", m.N, n)
			}
			if down.Load() {
				failures[m.N]++
				failed <- m.N
				return errNo
			}
			count[m.N]++
			handled <- m.N
			return nil
		})},
	}
	cfg.Recoverability.ErrorQueue = errors
	cfg.Recoverability.Delayed = recoverability.None
	cfg.Recoverability.RateLimit = recoverability.RateLimit{After: 4, Delay: pause}
	r := start(t, cfg)
	for n := range messages {
		r.send(work{n}, endpoint.To(queue))
	}
	close(sent)
	wait := func(ch <-chan int, n int, what string) {
		t.Helper()
		for range n {
			select {
			case <-ch:
			case <-ctx.Done():
				t.Fatalf("waited in vain for %s", what)
			}
		}
	}
	wait(failed, probes, "failures")
	down.Store(false)
	wait(handled, messages, "messages to be handled after the outage")
	r.end()
	if most := slices.Max(failures[:]); most <= 6 && pause < time.Second/10 {
		t.Errorf("no message failed more than %d times, which its retries might do for", most)
	}
	if text := logs.String(); strings.Contains(text, "consumer_timeout") || strings.Contains(text, "held for long") || strings.Contains(text, "quarantine") {
		t.Errorf("messages were held for too long:\n%s", text)
	}
	for n := range messages {
		if count[n] != 1 {
			t.Errorf("message %d, which failed %d times, was handled %d times", n, failures[n], count[n])
		}
	}
	conn, err := broker.Open(ctx, transport.Env{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stats, err := conn.(transport.Inspector).Inspect(ctx, queue, errors)
	if err != nil || stats[0].Ready+stats[1].Ready != 0 {
		t.Errorf("left behind: %+v (%v)", stats, err)
	}
}

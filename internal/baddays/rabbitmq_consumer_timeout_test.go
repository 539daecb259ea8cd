package baddays_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

// consumerTimeout has a broker that takes messages back soon, and an endpoint that would need
// longer for what it prefetches, though no handler does. The broker used to close the channel and
// to deliver everything again.
func consumerTimeout(t *testing.T) outcome {
	const messages, limit = 60, 6 * time.Second
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	node := brokertest.OwnRabbitMQ(t)
	set := func(name, value string) {
		node.Eval(fmt.Sprintf("application:set_env(rabbit, %s, %s).", name, value))
	}
	set("channel_tick_interval", "1000")
	set("consumer_timeout", fmt.Sprint(limit.Milliseconds()))
	t.Cleanup(func() {
		set("channel_tick_interval", "60000")
		set("consumer_timeout", "1800000")
	})
	name, handled := brokertest.Name(t, "sales"), newRuns()
	var logs safeBuffer
	stop := runWorker(t, endpoint.Config{
		Name: name, Transport: &rabbitmq.Transport{URL: node.URL, ConsumerTimeout: limit}, Concurrency: 2, Logger: slog.New(slog.NewTextHandler(&logs, nil)),
	}, func(ctx context.Context, s *endpoint.Session, w work) error {
		defer handled.count(s, w)
		return backoff.Sleep(ctx, limit/10)
	})
	p := newRawPublisher(t, node.URL)
	for i := range messages {
		p.publish(name, workMessage(i))
	}
	p.wait()
	handled.wait(ctx, t, messages)
	stop()
	if text := logs.String(); strings.Contains(text, "requeued the messages of the channel") || strings.Contains(text, "held for long") {
		t.Errorf("messages were held for too long:\n%s", text)
	}
	if n := handled.repeated(); n > 0 {
		t.Errorf("%d messages were handled again", n)
	}
	return outcome{
		message:    fmt.Sprintf("the channel stays open; no message was delivered more than %d times", handled.most),
		neighbours: fmt.Sprintf("%d of %d were handled, once each", handled.len(), messages),
	}
}

// safeBuffer is a buffer for a log.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

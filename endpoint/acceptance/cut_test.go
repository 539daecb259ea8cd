package acceptance_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

// The proof by cut: the connections of an endpoint break again and again while it works, and
// in the end every message has been handled and what it sent is there.
func TestChaosCutConnectionsLoseNothing(t *testing.T) {
	t.Parallel()
	brokertest.Fault(t)
	cuts, messages := 10, 4000
	if os.Getenv("HOLDFAST_SOAK") != "" {
		cuts, messages = 100, 100000
	}
	for _, queueType := range []rabbitmq.QueueType{rabbitmq.Quorum, rabbitmq.Classic} {
		t.Run(fmt.Sprint(queueType), func(t *testing.T) {
			t.Parallel()
			c := &cutProof{t: t, url: brokertest.RabbitMQ(t), queueType: queueType, sent: map[string]int{}, progress: make(chan int, 1)}
			c.in, c.out = brokertest.Name(t, "in"), brokertest.Name(t, "out")
			c.errors = brokertest.Name(t, "error")
			c.run(cuts, messages)
		})
	}
}

type cutProof struct {
	t               *testing.T
	url             string
	queueType       rabbitmq.QueueType
	in, out, errors string
	progress        chan int // the number of different messages that arrived at out

	mu   sync.Mutex
	sent map[string]int // messages at out, by the number in them
}

func (c *cutProof) run(cuts, messages int) {
	ctx, cancel := context.WithTimeout(c.t.Context(), 20*time.Minute)
	defer cancel()
	c.preload(ctx, messages)
	broker, err := url.Parse(c.url)
	if err != nil {
		c.t.Fatal(err)
	}
	proxy := brokertest.NewProxy(c.t, broker.Host)
	stop := c.endpoints(proxy.URL(c.t, c.url))
	for k := range cuts {
		c.waitFor(ctx, messages*(k+1)/(cuts+1))
		proxy.Cut()
	}
	c.waitFor(ctx, messages)
	stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	doubled := 0
	for _, n := range c.sent {
		doubled += n - 1
	}
	c.t.Logf("%d cuts, %d messages, 0 lost, %d sent twice", cuts, messages, doubled)
}

// preload makes the queues and fills the first, on a connection that is not cut.
func (c *cutProof) preload(ctx context.Context, messages int) {
	conn, err := (&rabbitmq.Transport{URL: c.url, QueueType: c.queueType}).Open(ctx, transport.Env{})
	if err != nil {
		c.t.Fatal(err)
	}
	plan := transport.Plan{Queues: []transport.Queue{{Name: c.in}, {Name: c.out}, {Name: c.errors, Shared: true}}}
	if err := conn.(transport.Installer).Install(ctx, plan); err != nil {
		c.t.Fatal(err)
	}
	ops := make([]transport.Operation, messages)
	for n := range ops {
		m := &transport.Message{ID: fmt.Sprint("m-", n), Body: fmt.Appendf(nil, `{"N":%d}`, n)}
		m.Headers = header.New(header.Field{Name: header.EnclosedMessageTypes, Value: "Kill.Work"})
		ops[n] = transport.Operation{Message: m, Queue: c.in}
	}
	if _, err := conn.Dispatch(ctx, ops); err != nil {
		c.t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		c.t.Fatal(err)
	}
}

// endpoints starts one that works through the proxy and one that counts what it sent.
func (c *cutProof) endpoints(through string) (stop func()) {
	types := []endpoint.Message{endpoint.Command[work]("Kill.Work"), endpoint.Command[worked]("Kill.Worked").To(c.out)}
	working := endpoint.Config{
		Name: c.in, Transport: &rabbitmq.Transport{URL: through, QueueType: c.queueType}, Messages: types, Concurrency: 16,
		Logger: slog.New(slog.DiscardHandler),
		Handlers: []endpoint.Handler{endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m work) error {
			return s.Send(ctx, worked(m))
		})},
	}
	// A cut fails what is under way, and that is what retries are for.
	working.Recoverability.Immediate, working.Recoverability.ErrorQueue = 1000, c.errors
	counting := endpoint.Config{
		Name: c.out, Transport: &rabbitmq.Transport{URL: c.url, QueueType: c.queueType}, Messages: types, Concurrency: 16,
		Logger: slog.New(slog.DiscardHandler),
		Handlers: []endpoint.Handler{endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m worked) error {
			c.count(fmt.Sprint(m.N))
			return nil
		})},
	}
	counting.Recoverability.ErrorQueue = c.errors
	ctx, cancel := context.WithCancel(context.Background())
	c.t.Cleanup(cancel)
	var all []*endpoint.Endpoint
	for _, cfg := range []endpoint.Config{working, counting} {
		e, err := endpoint.New(cfg)
		if err != nil {
			c.t.Fatal(err)
		}
		all = append(all, e)
	}
	done := make(chan error, 1)
	go func() { done <- endpoint.RunAll(ctx, all...) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			c.t.Error(err)
		}
	}
}

func (c *cutProof) count(number string) {
	c.mu.Lock()
	c.sent[number]++
	n := len(c.sent)
	c.mu.Unlock()
	select {
	case <-c.progress:
	default:
	}
	select {
	case c.progress <- n:
	default:
	}
}

// waitFor returns when n different messages have arrived.
func (c *cutProof) waitFor(ctx context.Context, n int) {
	c.t.Helper()
	for arrived := 0; arrived < n; {
		select {
		case arrived = <-c.progress:
		case <-ctx.Done():
			c.t.Fatalf("%d messages arrived, want %d", arrived, n)
		}
	}
}

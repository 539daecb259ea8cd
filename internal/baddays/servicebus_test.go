package baddays_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/asb"
)

// serviceBusDays are the rows under "Azure Service Bus" in docs/bad-days.md. Each day has a file of
// its own.
var serviceBusDays = []day{
	{name: "A delayed retry is refused", run: serviceBusRefusedRetry},
	{name: "A message of 250 KiB fails", run: serviceBusLargeFailure},
	{name: "The namespace is throttled at the start", run: serviceBusThrottledStart},
	{name: "Sends are throttled", run: serviceBusThrottledSends},
	{name: "Tokens are refused at their refresh", long: true, run: serviceBusRefusedTokens},
	{name: "Locks end with their link", run: serviceBusEndedLocks},
}

func TestChaosDaysOfServiceBus(t *testing.T) { runDays(t, "Azure Service Bus", serviceBusDays) }

// busJob is the message of these days.
type busJob struct{ N int }

// busPatience bounds every wait of these days.
const busPatience = 2 * time.Minute

// bus is an endpoint "work" on a namespace, and what its handler has done.
type bus struct {
	t    *testing.T
	ns   *brokertest.ServiceBusNamespace
	tr   *asb.Transport
	conn transport.Conn // of the test

	mu   sync.Mutex
	runs map[int]int // handler runs by message
}

func newBus(t *testing.T, ns *brokertest.ServiceBusNamespace) *bus {
	t.Helper()
	b := &bus{t: t, ns: ns, tr: &asb.Transport{ConnectionString: ns.ConnectionString, Administration: ns.Admin}, runs: map[int]int{}}
	c, err := b.tr.Open(b.ctx(), transport.Env{Endpoint: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	b.conn = c
	plan := transport.Plan{Queues: []transport.Queue{{Name: "work"}, {Name: "work.quarantine"}, {Name: "target"}, {Name: "error", Shared: true}}}
	if err := c.(transport.Installer).Install(b.ctx(), plan); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bus) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), busPatience)
	b.t.Cleanup(cancel)
	return ctx
}

// run runs the endpoint until the test ends. It does not wait until it is ready.
func (b *bus) run(change func(*endpoint.Config), handle func(context.Context, *endpoint.Session, busJob) error) *endpoint.Endpoint {
	b.t.Helper()
	counted := func(ctx context.Context, s *endpoint.Session, m busJob) error {
		b.mu.Lock()
		b.runs[m.N]++
		b.mu.Unlock()
		return handle(ctx, s, m)
	}
	cfg := endpoint.Config{
		Name: "work", Transport: b.tr, Install: true, Concurrency: 16, Logger: slog.New(slog.DiscardHandler), Instance: "one",
		Messages: []endpoint.Message{endpoint.Command[busJob]("Work.Job")},
		Handlers: []endpoint.Handler{endpoint.Handle(counted)},
	}
	change(&cfg)
	e, err := endpoint.New(cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	b.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			b.t.Error(err)
		}
	})
	return e
}

// job is a message for the endpoint, as another producer sends it.
func (b *bus) job(n, padding int) transport.Operation {
	body := fmt.Appendf(nil, `{"N":%d,"Padding":"`, n)
	for range padding {
		body = append(body, 'x')
	}
	id := fmt.Sprint("m-", n)
	return transport.Operation{Queue: "work", Message: &transport.Message{
		ID: id, NativeID: id, Body: append(body, `"}`...), // a copy: the limit of the service alone counts
		Headers: header.New(
			header.Field{Name: header.MessageID, Value: id},
			header.Field{Name: header.EnclosedMessageTypes, Value: "Work.Job"},
			header.Field{Name: header.ContentType, Value: "application/json"},
		),
	}}
}

func (b *bus) dispatch(ops ...transport.Operation) {
	b.t.Helper()
	if _, err := b.conn.Dispatch(b.ctx(), ops); err != nil {
		b.t.Fatal(err)
	}
}

// send sends messages 0 to n-1.
func (b *bus) send(n int) {
	b.t.Helper()
	ops := make([]transport.Operation, n)
	for i := range ops {
		ops[i] = b.job(i, 0)
	}
	b.dispatch(ops...)
}

// await waits until the namespace is as wanted, and returns how long that took.
func (b *bus) await(what string, wanted func(queues map[string]brokertest.ServiceBusQueue) bool) time.Duration {
	b.t.Helper()
	began := time.Now()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for ctx := b.ctx(); ; {
		queues := b.ns.Control.State().Queues
		if wanted(queues) {
			return time.Since(began)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			b.t.Fatalf("%s: not within %v: %+v", what, busPatience, queues)
		}
	}
}

// attempts counts the handler runs of all messages, and those of the message with most.
func (b *bus) attempts() (all, most int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range b.runs {
		all += n
		most = max(most, n)
	}
	return all, most
}

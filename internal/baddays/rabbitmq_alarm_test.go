package baddays_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

// memoryAlarm is the day on which the broker runs short of memory and takes no messages for a
// while.
func memoryAlarm(t *testing.T) outcome {
	node := brokertest.OwnRabbitMQ(t)
	const name, n = "alarmed", 200
	var (
		mu   sync.Mutex
		runs = map[int]int{}
	)
	began := make(chan struct{}, 10*n)
	cfg := endpoint.Config{
		Name: name, Transport: &rabbitmq.Transport{URL: node.URL}, Messages: refusedTypes, Concurrency: 20, Install: true,
		Routes: []endpoint.Route{endpoint.RouteTo[refusedBill](name + ".bills")}, Logger: slog.New(slog.DiscardHandler),
		Handlers: []endpoint.Handler{endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m refusedOrder) error {
			mu.Lock()
			runs[m.N]++
			mu.Unlock()
			began <- struct{}{}
			return s.Send(ctx, refusedBill(m))
		})},
	}
	e, err := endpoint.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	admin := refusedConn(t, node.URL)
	plan := transport.Plan{Queues: []transport.Queue{{Name: name}, {Name: name + ".bills", Shared: true}}}
	if err := admin.(transport.Installer).Install(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	(&refusedRun{admin: node.URL}).fill(t, name, n)
	node.Control("set_vm_memory_high_watermark", "0")
	lift := sync.OnceFunc(func() { node.Control("set_vm_memory_high_watermark", "0.4") })
	defer lift()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	<-began
	<-time.After(40 * time.Second) // the alarm
	lift()
	begin := time.Now()
	bills := drained(t, admin, name+".bills", n, time.Minute)
	o := outcome{
		message: "waits, no attempt is used up", neighbours: "wait too, once all of the concurrency waits",
		normal: time.Since(begin),
	}
	seen := map[string]int{}
	for _, m := range bills {
		seen[string(m.Body)]++
	}
	if len(seen) != n {
		t.Errorf("%d different bills of %d", len(seen), n)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	for order, times := range runs {
		if times != 1 {
			t.Errorf("order %d was handled %d times", order, times)
		}
	}
	if len(runs) != n {
		t.Error(fmt.Sprint(len(runs), " orders were handled"))
	}
	return o
}

// manyDueAtOnce is the day on which many delayed messages are due in the same second.
func manyDueAtOnce(t *testing.T) outcome {
	const n = 20_000
	l := newLateEndpoint(t, brokertest.RabbitMQ(t), "shop")
	l.send(t, 0, n, 60*time.Second)
	late := l.wait(t, n, 10*time.Minute)
	if late > 5*time.Minute {
		t.Errorf("the last message came %v late", late)
	}
	return outcome{message: fmt.Sprintf("%d arrive once, the last %v late", n, late.Round(time.Second)), neighbours: "other delayed messages wait their turn"}
}

package acceptance_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

// While the error queue is full, failed messages wait in the process and take nothing of the
// others. Their handlers run once, also when the endpoint stops and starts again meanwhile, and
// each arrives in the error queue once.
func TestFullErrorQueueOnRabbitMQ(t *testing.T) {
	onBrokers(t, []string{"quorum"}, []string{"classic"}, func(t *testing.T, kind string) {
		f := newFullErrorQueue(t, kind)
		r := start(t, f.cfg)
		f.fill(t)
		f.send(r, "bad", 0, fullBad)
		f.holds(t, r)
		f.send(r, "well", 0, 300)
		f.eventually(t, "the others are handled", func() bool { return f.handled("well") == 300 })
		f.empties(t, func() {
			f.eventually(t, "the failed messages arrive", func() bool { return f.arrived("bad") == fullBad })
			f.eventually(t, "the endpoint is ready", func() bool { return r.Health().Ready })
		})

		f.fill(t)
		f.send(r, "late", 0, fullBad)
		f.holds(t, r)
		r.end()
		r = start(t, f.cfg)
		f.send(r, "well again", 0, 50)
		f.eventually(t, "the others are handled after a restart", func() bool { return f.handled("well again") == 50 })
		f.empties(t, func() {
			f.eventually(t, "the failed messages arrive after a restart", func() bool { return f.arrived("late") == fullBad })
			f.eventually(t, "the endpoint is ready", func() bool { return r.Health().Ready })
		})
		f.onlyOnce(t)
	})
}

// fullBad is the number of messages that fail: more than the least prefetch, and than the messages
// that settle at once.
const fullBad = 100

// fullErrorQueue is an endpoint with an error queue that has a limit.
type fullErrorQueue struct {
	broker        *rabbitmq.Transport
	queue, errors string
	cfg           endpoint.Config

	mu    sync.Mutex // guards the rest
	calls map[string]int
	came  map[string]int
	odd   []string // messages in the error queue without the headers of a fault
}

type namedWork struct{ Name string }

func newFullErrorQueue(t *testing.T, kind string) *fullErrorQueue {
	t.Helper()
	url := brokertest.RabbitMQ(t)
	f := &fullErrorQueue{
		broker: &rabbitmq.Transport{URL: url, QueueType: rabbitmq.QueueType(kind)},
		queue:  brokertest.Name(t, "full"), errors: brokertest.Name(t, "error"),
		calls: map[string]int{}, came: map[string]int{},
	}
	f.cfg = endpoint.Config{
		Name: f.queue, Transport: f.broker, Concurrency: 8, Install: true,
		Messages: []endpoint.Message{endpoint.Command[namedWork]("Full.Work")},
		Handlers: []endpoint.Handler{endpoint.Handle(f.handle)},
		Recoverability: recoverability.Config{
			ErrorQueue: f.errors, Immediate: recoverability.None, Delayed: recoverability.None,
		},
	}
	start(t, f.cfg).end() // creates the queues
	f.cfg.Install = false
	conn, err := amqp.Dial(url)
	must(t, err)
	defer conn.Close()
	ch, err := conn.Channel()
	must(t, err)
	_, err = ch.QueueDelete(f.errors, false, false, false)
	must(t, err)
	args := amqp.Table{"x-queue-type": kind, "x-max-length": 10, "x-overflow": "reject-publish"}
	_, err = ch.QueueDeclare(f.errors, true, false, false, false, args)
	must(t, err)
	return f
}

func (f *fullErrorQueue) handle(_ context.Context, _ *endpoint.Session, m namedWork) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[m.Name]++
	if strings.HasPrefix(m.Name, "well") {
		return nil
	}
	return errNo
}

func (f *fullErrorQueue) send(r *running, prefix string, from, to int) {
	for i := from; i < to; i++ {
		name := fmt.Sprintf("%s-%d", prefix, i)
		r.send(namedWork{name}, endpoint.To(f.queue), endpoint.MessageID(name))
	}
}

// count returns how many of the names with the prefix are in the map.
func (f *fullErrorQueue) count(of map[string]int, prefix string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name := range of {
		if strings.HasPrefix(name, prefix+"-") {
			n++
		}
	}
	return n
}

func (f *fullErrorQueue) handled(prefix string) int { return f.count(f.calls, prefix) }
func (f *fullErrorQueue) arrived(prefix string) int { return f.count(f.came, prefix) }

func (f *fullErrorQueue) eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeLimit)
	defer cancel()
	for !is() {
		if ctx.Err() != nil {
			f.mu.Lock()
			defer f.mu.Unlock()
			t.Fatalf("%s: not within %v; %d messages were handled, %d have arrived", what, timeLimit, len(f.calls), len(f.came))
		}
		nextLook(ctx)
	}
}

// fill sends messages to the error queue until it refuses them.
func (f *fullErrorQueue) fill(t *testing.T) {
	t.Helper()
	connected(t, f.broker, func(ctx context.Context, conn transport.Conn) error {
		for refused := 0; refused < 3; {
			_, err := conn.Dispatch(ctx, []transport.Operation{{Queue: f.errors, Message: &transport.Message{ID: "filler"}}})
			switch {
			case errors.Is(err, transport.ErrFull):
				refused++
			case err != nil:
				return err
			}
		}
		return nil
	})
}

// holds waits until the failed messages are held, and Health names the queue. The limit of a queue
// is not exact.
func (f *fullErrorQueue) holds(t *testing.T, r *running) {
	t.Helper()
	f.eventually(t, "failed messages are held", func() bool {
		h := r.Health()
		return !h.Ready && len(h.Queues) > 0 && h.Queues[0].Held >= fullBad*9/10 && h.Queues[0].Handling+h.Queues[0].Settling == 0 &&
			strings.Contains(fmt.Sprint(h.Reasons), f.errors)
	})
}

// empties takes messages out of the error queue while wait runs.
func (f *fullErrorQueue) empties(t *testing.T, wait func()) {
	t.Helper()
	connected(t, f.broker, func(ctx context.Context, conn transport.Conn) error {
		ctx, stop := context.WithCancel(ctx)
		receiver, err := conn.OpenReceiver(ctx, transport.ReceiverOptions{Queue: f.errors})
		if err != nil {
			stop()
			return err
		}
		receiver.Window(20)
		result := make(chan error, 1)
		go func() {
			for {
				ds, err := receiver.Receive(ctx, 20)
				if ctx.Err() != nil {
					err = nil
				}
				for _, d := range ds {
					f.record(d.Message())
					err = errors.Join(err, d.Complete(context.WithoutCancel(ctx)))
				}
				if err != nil || ctx.Err() != nil {
					result <- err
					return
				}
			}
		}()
		defer func() {
			stop()
			if err := <-result; err != nil {
				t.Error(err)
			}
			must(t, receiver.Close())
		}()
		wait()
		return nil
	})
}

func (f *fullErrorQueue) record(m *transport.Message) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if m.ID == "filler" {
		return
	}
	f.came[m.ID]++
	_, decided := m.Headers.Lookup(header.HoldfastFaultDecided)
	if m.Headers.Get(header.FailedQ) != f.queue || !strings.Contains(m.Headers.Get(header.ExceptionMessage), errNo.Error()) || decided {
		f.odd = append(f.odd, m.ID)
	}
}

// onlyOnce fails the test if a handler has run twice, or a message is in the error queue twice.
func (f *fullErrorQueue) onlyOnce(t *testing.T) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, n := range f.calls {
		if n > 1 {
			t.Errorf("the handler of %s ran %d times", name, n)
		}
	}
	for name, n := range f.came {
		if n > 1 {
			t.Errorf("%s was in the error queue %d times", name, n)
		}
	}
	if len(f.odd) > 0 {
		t.Errorf("without the headers of their fault: %q", f.odd)
	}
}

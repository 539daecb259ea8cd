package baddays_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/postgres"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

// wellQueues is how many destinations the silent queue has beside it.
const wellQueues = 20

// parcel is sent on to queue N modulo (wellQueues + 1).
type (
	parcel    struct{ N int }
	delivered struct{ N int }
)

func (p parcel) queue() string {
	if n := p.N % (wellQueues + 1); n < wellQueues {
		return fmt.Sprintf("well-%02d", n)
	}
	return "silent"
}

// A silence makes the queue "silent" confirm nothing until its end.
type silence struct{ begin, end func() }

// silentQueue suspends the Raft process of one quorum queue, which confirms nothing then, as one
// without a majority.
func silentQueue(t *testing.T) outcome {
	return silentDay(t, func(t *testing.T) (string, silence) {
		node := brokertest.SharedRabbitMQ(t)
		tell := func(verb string) func() {
			return func() {
				u, err := url.Parse(node.URL)
				must(t, err)
				node.Eval(fmt.Sprintf(`{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"%s">>, queue, <<"silent">>)), {Raft, _} = amqqueue:get_pid(Q), ok = sys:%s(Raft).`,
					strings.TrimPrefix(u.Path, "/"), verb))
			}
		}
		return node.URL, silence{tell("suspend"), tell("resume")}
	})
}

// lostMajority ends two of the three nodes of a cluster. One quorum queue has members on all three
// nodes, and the other queues have one member, on the third node.
func lostMajority(t *testing.T) outcome {
	return silentDay(t, func(t *testing.T) (string, silence) {
		nodes := brokertest.RabbitMQCluster(t)
		declareSilent(t, nodes[0])
		for _, n := range nodes {
			n.Eval("application:set_env(rabbit, quorum_cluster_size, 1).")
		}
		return nodes[0].URL, silence{
			begin: func() {
				for _, n := range nodes[1:] {
					n.Control("eval", "[ok = dets:sync(Table) || Table <- dets:all()].")
					n.Stop(os.Kill)
				}
			},
			end: func() {
				for _, n := range nodes[1:] {
					n.Start()
				}
			},
		}
	})
}

// declareSilent declares the queue "silent" while each quorum queue gets a member on each node of
// the cluster.
func declareSilent(t *testing.T, n brokertest.RabbitMQNode) {
	t.Helper()
	conn, err := amqp.Dial(n.URL)
	must(t, err)
	ch, err := conn.Channel()
	must(t, err)
	_, err = ch.QueueDeclare("silent", true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	must(t, err)
	must(t, conn.Close())
}

// silentDay runs a day with a broker and the silence of its queue "silent", with and without an
// outbox.
func silentDay(t *testing.T, on func(t *testing.T) (url string, s silence)) outcome {
	t.Helper()
	var normal time.Duration
	for _, outbox := range []string{"with an outbox", "without an outbox"} {
		t.Run(outbox, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
			defer cancel()
			broker, silence := on(t)
			s := newSorting(ctx, t, broker, outbox == "with an outbox")
			normal = max(normal, s.run(ctx, silence))
		})
	}
	return outcome{"waits, and is sent again at each probe of its queue", "arrive", normal}
}

// sorting is an endpoint that sends each parcel to a queue.
type sorting struct {
	t        *testing.T
	conn     transport.Conn
	endpoint *endpoint.Endpoint

	mu      sync.Mutex // guards the rest
	sent    map[int]time.Time
	late    map[int]time.Duration // from the sending of a parcel to its first arrival
	arrived map[int]int
}

func newSorting(ctx context.Context, t *testing.T, broker string, outbox bool) *sorting {
	t.Helper()
	s := &sorting{t: t, sent: map[int]time.Time{}, late: map[int]time.Duration{}, arrived: map[int]int{}}
	cfg := endpoint.Config{
		Name: "sorting", Transport: &rabbitmq.Transport{URL: broker}, Install: true, Concurrency: 16,
		Logger:   slog.New(slog.DiscardHandler),
		Messages: []endpoint.Message{endpoint.Command[parcel]("Sorting.Parcel"), endpoint.Command[delivered]("Sorting.Delivered")},
		Handlers: []endpoint.Handler{endpoint.Handle(func(ctx context.Context, session *endpoint.Session, m parcel) error {
			return session.Send(ctx, delivered(m), endpoint.To(m.queue()))
		})},
	}
	if outbox {
		cfg.Outbox = &postgres.Transport{URL: brokertest.Postgres(t)}
	}
	e, err := endpoint.New(cfg)
	must(t, err)
	s.endpoint = e
	s.conn, err = cfg.Transport.Open(ctx, transport.Env{})
	must(t, err)
	var plan transport.Plan
	for n := range wellQueues + 1 {
		plan.Queues = append(plan.Queues, transport.Queue{Name: parcel{n}.queue()})
	}
	must(t, s.conn.(transport.Installer).Install(ctx, plan))
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		must(t, <-done)
		must(t, s.conn.Close())
	})
	must(t, e.WaitReady(ctx))
	return s
}

// run sends parcels before the queue is silent, while it is silent, and after its end.
func (s *sorting) run(ctx context.Context, of silence) (normal time.Duration) {
	stop := s.receive(ctx)
	defer stop()
	n := size(10, 60) * (wellQueues + 1)
	s.send(ctx, 0, n)
	s.await(ctx, "all parcels", func() bool { return s.missing(0, n, "") == 0 })

	of.begin()
	ended := time.Time{}
	defer func() {
		if ended.IsZero() {
			of.end() // so that the virtual host can be deleted
		}
	}()
	began := time.Now()
	s.send(ctx, n, 2*n)
	s.await(ctx, "the parcels to well queues", func() bool { return s.missing(n, 2*n, "silent") == 0 })
	s.await(ctx, "Health to name the silent queue", func() bool {
		h := s.endpoint.Health()
		text := strings.Join(append(h.Reasons, h.Warnings...), "\n")
		if h.Outbox != nil {
			text += fmt.Sprintf("%+v", *h.Outbox)
		}
		return strings.Contains(text, "silent")
	})
	s.t.Logf("Health names the queue after %v", time.Since(began).Round(10*time.Millisecond))
	s.send(ctx, 2*n, 3*n) // more than the well queues need, behind what the silent queue holds up
	s.await(ctx, "further parcels to well queues", func() bool { return s.missing(n, 3*n, "silent") == 0 })
	s.mu.Lock()
	var slowest time.Duration
	for i, late := range s.late {
		if i >= n {
			slowest = max(slowest, late)
		}
	}
	s.mu.Unlock()
	s.t.Logf("the slowest parcel to a well queue came after %v", slowest.Round(time.Millisecond))

	of.end()
	ended = time.Now()
	s.await(ctx, "the parcels to the silent queue", func() bool { return s.missing(0, 3*n, "") == 0 })
	s.await(ctx, "the endpoint to be ready", func() bool { return s.endpoint.Health().Ready })
	s.mu.Lock()
	defer s.mu.Unlock()
	doubled := 0
	for _, times := range s.arrived {
		doubled += times - 1
	}
	s.t.Logf("%d copies too many of %d parcels", doubled, 3*n)
	return time.Since(ended)
}

// send sends parcels at about 100 a second.
func (s *sorting) send(ctx context.Context, from, to int) {
	for n := from; n < to; n++ {
		s.mu.Lock()
		s.sent[n] = time.Now()
		s.mu.Unlock()
		must(s.t, s.endpoint.SendLocal(ctx, parcel{n}))
		must(s.t, backoff.Sleep(ctx, 10*time.Millisecond))
	}
}

// receive notes what arrives in the destinations until stop is called.
func (s *sorting) receive(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var receivers sync.WaitGroup
	for q := range wellQueues + 1 {
		r, err := s.conn.OpenReceiver(ctx, transport.ReceiverOptions{Queue: parcel{q}.queue()})
		must(s.t, err)
		r.Window(100)
		receivers.Go(func() {
			pause := backoff.Backoff{Min: 10 * time.Millisecond, Max: time.Second}
			for ctx.Err() == nil {
				ds, err := r.Receive(ctx, 100)
				if err != nil && pause.Wait(ctx) != nil { // a silent queue may take no consumer
					break
				}
				for _, d := range ds {
					s.note(d.Message())
					must(s.t, d.Complete(ctx))
				}
			}
			must(s.t, r.Close())
		})
	}
	return func() {
		cancel()
		receivers.Wait()
	}
}

func (s *sorting) note(m *transport.Message) {
	var n int
	_, err := fmt.Sscanf(string(m.Body), `{"N":%d}`, &n)
	must(s.t, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.arrived[n]++; s.arrived[n] == 1 {
		s.late[n] = time.Since(s.sent[n])
	}
}

// missing returns how many of the parcels have not arrived, without those to queue except.
func (s *sorting) missing(from, to int, except string) (missing int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n := from; n < to; n++ {
		if s.arrived[n] == 0 && (parcel{n}).queue() != except {
			missing++
		}
	}
	return missing
}

func (s *sorting) await(ctx context.Context, what string, is func() bool) {
	s.t.Helper()
	pause := backoff.Backoff{Min: 10 * time.Millisecond, Max: 100 * time.Millisecond}
	for !is() {
		if err := pause.Wait(ctx); err != nil {
			h := s.endpoint.Health()
			s.t.Fatalf("waited in vain for %s: %v\nreasons %q, warnings %q, outbox %+v", what, errors.Join(err), h.Reasons, h.Warnings, h.Outbox)
		}
	}
}

package acceptance_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

// The proof by restart: the broker ends its connections, is stopped and is killed while
// endpoints work. Everything goes on by itself, and in the end every message has been handled.

// rounds is how often a broker is disturbed in each of the ways, and messages how many are
// handled meanwhile.
func rounds(disturbances int) (n, messages int) {
	const each = 400
	n = disturbances
	if os.Getenv("HOLDFAST_SOAK") != "" {
		n *= 20
	}
	return n, n * each
}

// workTime keeps messages in their handlers, and the broker busy, while it is disturbed.
const workTime = 15 * time.Millisecond

const restartConcurrency = 8

func TestChaosRestartsOfRabbitMQLoseNothing(t *testing.T) {
	t.Parallel()
	brokertest.Fault(t)
	for _, kind := range []rabbitmq.QueueType{rabbitmq.Quorum, rabbitmq.Classic} {
		t.Run(string(kind), func(t *testing.T) {
			node := brokertest.OwnRabbitMQ(t)
			p := &restartProof{t: t, open: func() transport.Transport {
				return &rabbitmq.Transport{URL: node.URL, QueueType: kind}
			}}
			closed := func() { node.Control("close_all_connections", "the operator said so") }
			stopped := node.RestartApp
			doubled := p.run(closed, stopped, closed, node.Kill)
			// What was sent by a handler whose acknowledgement was under way; not what had long
			// been done. A classic queue writes acknowledgements down when it comes to rest: the
			// kill undoes those since.
			if n, _ := rounds(4); kind == rabbitmq.Quorum && doubled > 4*restartConcurrency*n {
				t.Errorf("%d were sent twice in %d disturbances", doubled, n)
			}
		})
	}
}

func TestChaosRestartsOfPostgreSQLLoseNothing(t *testing.T) {
	t.Parallel()
	brokertest.Fault(t)
	for _, mode := range []endpoint.TransactionMode{endpoint.ReceiveOnly, endpoint.SendsAtomicWithReceive} {
		t.Run(fmt.Sprint(mode), func(t *testing.T) {
			node := brokertest.OwnPostgres(t)
			store, err := openKillStore("postgres", node.URL)
			if err != nil {
				t.Fatal(err)
			}
			defer store.Close()
			if err := store.exec(t.Context(), `CREATE TABLE done (n int)`); err != nil {
				t.Fatal(err)
			}
			p := &restartProof{t: t, open: store.transport, mode: mode}
			if mode == endpoint.SendsAtomicWithReceive {
				p.write = store.write
			}
			ended := int64(0)
			terminated := func() { ended += terminate(t, node.URL) }
			doubled := p.run(terminated, terminated,
				func() { node.Restart(os.Interrupt) }, terminated,
				func() { node.Restart(syscall.SIGQUIT) }, func() { node.Restart(os.Kill) })
			if doubled > 0 || ended == 0 {
				t.Errorf("%d sent twice, %d connections ended", doubled, ended)
			}
			if p.write == nil {
				return
			}
			rows, err := store.rows(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			allOnce(t, "written", p.messages, rows)
		})
	}
}

// terminate ends connections of the endpoints by chance, about half, and returns how many.
func terminate(t *testing.T, server string) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	pool, err := pgxpool.New(ctx, server)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	tag, err := pool.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE application_name LIKE 'holdfast %' AND random() < 0.5`)
	if err != nil {
		t.Fatal(err)
	}
	return tag.RowsAffected()
}

type restartProof struct {
	t        *testing.T
	open     func() transport.Transport
	mode     endpoint.TransactionMode
	write    func(ctx context.Context, s *endpoint.Session, n int) error // nil where it writes nothing
	messages int
	handled  atomic.Int64 // times that the first handler ran

	mu       sync.Mutex
	sent     map[int]map[string]bool // ids of what arrived at the second queue, by the number in it
	progress chan struct{}           // has something when sent has grown
}

// run disturbs the broker in each of the ways while messages are handled, and returns how
// many were sent twice.
func (p *restartProof) run(disturb ...func()) (doubled int) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), 10*time.Minute)
	defer cancel()
	var n int
	n, p.messages = rounds(len(disturb))
	p.sent, p.progress = map[int]map[string]bool{}, make(chan struct{}, 1)
	p.preload(ctx)
	stop := p.start()
	for i := range n {
		p.arrived(ctx, p.messages*(i+1)/(n+1))
		disturb[i%len(disturb)]()
	}
	p.arrived(ctx, p.messages)
	stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ids := range p.sent {
		doubled += len(ids) - 1
	}
	p.t.Logf("%d disturbances, %d messages, 0 lost, %d handled again, %d sent twice",
		n, p.messages, p.handled.Load()-int64(p.messages), doubled)
	return doubled
}

func (p *restartProof) preload(ctx context.Context) {
	conn, err := p.open().Open(ctx, transport.Env{})
	if err != nil {
		p.t.Fatal(err)
	}
	plan := transport.Plan{Queues: []transport.Queue{{Name: "work"}, {Name: "worked"}}}
	if err := conn.(transport.Installer).Install(ctx, plan); err != nil {
		p.t.Fatal(err)
	}
	var ops []transport.Operation
	for n := range p.messages {
		m := &transport.Message{ID: fmt.Sprint("m-", n), Body: fmt.Appendf(nil, `{"N":%d}`, n)}
		m.Headers = header.New(header.Field{Name: header.EnclosedMessageTypes, Value: "Kill.Work"})
		if ops = append(ops, transport.Operation{Message: m, Queue: "work"}); len(ops) < 300 && n < p.messages-1 {
			continue
		}
		if _, err := conn.Dispatch(ctx, ops); err != nil {
			p.t.Fatal(err)
		}
		ops = nil
	}
	if err := conn.Close(); err != nil {
		p.t.Fatal(err)
	}
}

// start runs an endpoint that handles and sends on, and one that takes note of what arrives.
func (p *restartProof) start() (stop func()) {
	working := p.config("work", endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m work) error {
		p.handled.Add(1)
		<-time.After(workTime)
		if p.write != nil {
			if err := p.write(ctx, s, m.N); err != nil {
				return err
			}
		}
		return s.Send(ctx, worked(m))
	}))
	working.Transactions = p.mode
	noting := p.config("worked", endpoint.Handle(func(_ context.Context, s *endpoint.Session, m worked) error {
		p.note(m.N, s.MessageID())
		return nil
	}))
	var all []*endpoint.Endpoint
	for _, cfg := range []endpoint.Config{working, noting} {
		e, err := endpoint.New(cfg)
		if err != nil {
			p.t.Fatal(err)
		}
		all = append(all, e)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.t.Cleanup(cancel)
	done := make(chan error, 1)
	go func() { done <- endpoint.RunAll(ctx, all...) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			p.t.Error(err)
		}
	}
}

func (p *restartProof) config(name string, handler endpoint.Handler) endpoint.Config {
	cfg := endpoint.Config{
		Name: name, Transport: p.open(), Install: true, Concurrency: restartConcurrency,
		Messages: []endpoint.Message{endpoint.Command[work]("Kill.Work"), endpoint.Command[worked]("Kill.Worked").To("worked")},
		Handlers: []endpoint.Handler{handler}, Logger: slog.New(slog.DiscardHandler),
	}
	cfg.Recoverability.Immediate = 1000 // what is under way fails, and that is what retries are for
	return cfg
}

func (p *restartProof) note(n int, id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sent[n] == nil {
		p.sent[n] = map[string]bool{}
	}
	p.sent[n][id] = true
	select {
	case p.progress <- struct{}{}:
	default:
	}
}

// arrived returns when n different messages have come.
func (p *restartProof) arrived(ctx context.Context, n int) {
	p.t.Helper()
	for {
		p.mu.Lock()
		got := len(p.sent)
		p.mu.Unlock()
		if got >= n {
			return
		}
		select {
		case <-p.progress:
		case <-ctx.Done():
			p.t.Fatalf("%d messages arrived, want %d", got, n)
		}
	}
}

package endpoint

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// Endpoint receives, handles and sends messages while it runs. All its methods may
// be called by many goroutines.
type Endpoint struct {
	cfg            Config
	types          *registry
	recoverability recoverability.Config
	host           recoverability.Host
	failures       failureCount

	receive  pipeline.Func[*pipeline.Receive]
	logical  pipeline.Func[*pipeline.Logical]
	invoke   pipeline.Func[*pipeline.Invoke]
	outgoing pipeline.Func[*pipeline.Outgoing]
	dispatch pipeline.Func[*pipeline.Dispatch]
	recover  pipeline.Func[*pipeline.Recover]

	started atomic.Bool
	ready   chan struct{}
	live    atomic.Pointer[live] // nil unless running
}

var _ pipeline.Sender = (*Endpoint)(nil)

// live is what an endpoint has while it runs.
type live struct {
	conn      transport.Conn
	limits    transport.Limits
	publishes bool
	settling  deadlines
	holding   pauses
	pump      *pump.Pump // nil in a send-only endpoint
}

// pauses is a back-off shared by the messages that could not be dealt with.
type pauses struct {
	mu      sync.Mutex // guards the rest
	backoff backoff.Backoff
	last    time.Time
}

const maxHold = 30 * time.Second

// next is the pause for another message; it starts again at a second when there was
// none for a while.
func (p *pauses) next() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if now.Sub(p.last) > 2*maxHold {
		p.backoff = backoff.Backoff{Min: time.Second, Max: maxHold}
	}
	p.last = now
	return p.backoff.Next()
}

// New makes an endpoint. It does no I/O. The error holds everything that is wrong
// with cfg.
func New(cfg Config) (*Endpoint, error) {
	err := cfg.validate()
	types, terr := newRegistry(cfg)
	cfg = cfg.withDefaults()
	e := &Endpoint{cfg: cfg, types: types, recoverability: cfg.Recoverability, ready: make(chan struct{})}
	machine := machineName()
	e.host = recoverability.Host{
		Endpoint: cfg.Name, Machine: machine, HostID: hostID(cfg.Name, machine), DisplayName: cfg.Instance,
	}
	if err := errors.Join(err, terr, e.compose()); err != nil {
		return nil, fmt.Errorf("endpoint %q: invalid configuration: %w", cfg.Name, err)
	}
	return e, nil
}

// compose builds the stages, once.
func (e *Endpoint) compose() error {
	p := &e.cfg.Pipeline
	var errs []error
	e.receive = stage(&errs, "Receive", &p.Receive, e.decode)
	e.logical = stage(&errs, "Logical", &p.Logical, e.invokeAll)
	e.invoke = stage(&errs, "Invoke", &p.Invoke, e.invokeOne)
	e.outgoing = stage(&errs, "Outgoing", &p.Outgoing, e.encode)
	e.dispatch = stage(&errs, "Dispatch", &p.Dispatch, e.dispatchAll)
	e.recover = stage(&errs, "Recover", &p.Recover, e.recoverEnd)
	return errors.Join(errs...)
}

func stage[T any](errs *[]error, name string, s *pipeline.Stage[T], end pipeline.Func[T]) pipeline.Func[T] {
	f, err := s.Then(end)
	if err != nil {
		*errs = append(*errs, fmt.Errorf("stage %s: %w", name, err))
	}
	return f
}

// Run connects, receives and handles messages until ctx ends; then it lets the
// handlers finish, for StopTimeout at most, and disconnects. It returns nil after
// such a stop, and an error when it could not start. A broker that goes away later is
// waited for. An endpoint runs once.
func (e *Endpoint) Run(ctx context.Context) (err error) {
	if e.started.Swap(true) {
		return fmt.Errorf("endpoint %q: it has been run already: make another by New", e.cfg.Name)
	}
	conn, err := e.open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	live := newLive(ctx, conn)
	defer live.settling.close()
	if err := e.prepare(ctx, live); err != nil {
		return err
	}
	if e.cfg.SendOnly {
		e.begin(live)
		<-ctx.Done()
		e.live.Store(nil)
		return nil
	}
	return e.pump(ctx, live)
}

func newLive(ctx context.Context, conn transport.Conn) *live {
	_, publishes := conn.(transport.Subscriber)
	return &live{
		conn: conn, limits: conn.Limits(), publishes: publishes,
		settling: deadlines{parent: context.WithoutCancel(ctx), span: settleTimeout},
	}
}

func (e *Endpoint) open(ctx context.Context) (transport.Conn, error) {
	conn, err := e.cfg.Transport.Open(ctx, transport.Env{
		Logger: e.cfg.Logger, Endpoint: e.cfg.Name, Instance: e.cfg.Instance,
	})
	if err != nil {
		return nil, fmt.Errorf("endpoint %q: connect: %w", e.cfg.Name, err)
	}
	return conn, nil
}

// prepare checks what the transport offers and gets its queues ready.
func (e *Endpoint) prepare(ctx context.Context, live *live) error {
	if e.cfg.Transactions == SendsAtomicWithReceive && !live.limits.Atomic {
		return fmt.Errorf("endpoint %q: the transport does not offer %v", e.cfg.Name, e.cfg.Transactions)
	}
	if e.cfg.Install {
		if err := e.install(ctx, live.conn); err != nil {
			return err
		}
	}
	return e.subscribe(ctx, live.conn)
}

// pump receives until ctx ends.
func (e *Endpoint) pump(ctx context.Context, live *live) error {
	receiver, err := live.conn.OpenReceiver(ctx, transport.ReceiverOptions{Queue: e.cfg.Name})
	if errors.Is(err, transport.ErrNoQueue) && !e.cfg.Install {
		err = fmt.Errorf("%w: create it with Config.Install or Endpoint.Install", err)
	}
	if err != nil {
		return fmt.Errorf("endpoint %q: receive: %w", e.cfg.Name, err)
	}
	if live.limits.MaxDelay == 0 && e.recoverability.Delayed > 0 {
		e.cfg.Logger.Warn("delayed retries are off: the transport offers no delays")
		e.recoverability.Delayed = recoverability.Off
	}
	live.pump = pump.New(pump.Config{
		Receiver: receiver, Limits: live.limits, Queue: e.cfg.Name, Concurrency: e.cfg.Concurrency,
		Handle: e.incoming(live, e.cfg.Name), StopTimeout: e.cfg.StopTimeout, Logger: e.cfg.Logger,
	})
	e.begin(live)
	err = live.pump.Run(ctx)
	e.live.Store(nil)
	return errors.Join(err, receiver.Close())
}

func (e *Endpoint) begin(live *live) {
	e.live.Store(live)
	close(e.ready)
}

// Ready is closed when the endpoint can send and receives. It stays open when
// Run fails before.
func (e *Endpoint) Ready() <-chan struct{} { return e.ready }

// Send sends m, a registered command or response, to the queue of its route or of
// [To]. It returns when the broker has accepted the message; [ErrNotRunning] before
// Run is ready.
func (e *Endpoint) Send(ctx context.Context, m any, opts ...Option) error {
	return e.send(ctx, header.IntentSend, m, opts, nil)
}

// Publish sends m, a registered event, to all who subscribed to its type or one of its
// base types. It returns when the broker has accepted it; [ErrNotRunning] before Run is
// ready.
func (e *Endpoint) Publish(ctx context.Context, m any, opts ...Option) error {
	return e.send(ctx, header.IntentPublish, m, opts, nil)
}

// Cancel calls back a delayed message by its receipt, which [ReceiptIn] hands out. It fails
// with [transport.ErrNotFound] when the message has been handed out or
// cancelled already.
func (e *Endpoint) Cancel(ctx context.Context, r transport.Receipt) error {
	live := e.live.Load()
	if live == nil {
		return ErrNotRunning
	}
	c, ok := live.conn.(transport.Canceler)
	if !ok || r.Cancel == "" {
		return errors.New("cancel: the transport cannot call this message back")
	}
	return c.Cancel(ctx, r.Cancel)
}

// RunAll runs endpoints side by side until ctx ends, each with its own transport
// and retries. One that ends does not stop the others. All errors come back, joined.
func RunAll(ctx context.Context, endpoints ...*Endpoint) error {
	errs := make([]error, len(endpoints))
	var wg sync.WaitGroup
	for i, e := range endpoints {
		wg.Go(func() { errs[i] = e.Run(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

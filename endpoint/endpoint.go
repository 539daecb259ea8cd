package endpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/holdfast-go/holdfast/endpoint/internal/failurelog"
	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/resilience"
	"github.com/holdfast-go/holdfast/serialization"
	"github.com/holdfast-go/holdfast/transport"
)

// Endpoint receives, handles and sends messages while it runs. It is safe for concurrent use.
type Endpoint struct {
	sender

	recoverability recoverability.Config
	failures       *failurelog.Log
	warnings       stateful.Warnings

	receive pipeline.Func[*pipeline.Receive]
	logical pipeline.Func[*pipeline.Logical]
	invoke  pipeline.Func[*pipeline.Invoke]
	recover pipeline.Func[*pipeline.Recover]
	relayed pipeline.Func[*pipeline.Relay]

	bounded bool // messages may have a policy or a time limit of their own
	copies  bool // behaviors and serializers get copies of received messages
	started atomic.Bool

	watchesDispatch bool // the stage has behaviors
	watchesRelay    bool // same

	foreign atomic.Bool   // a message without a handler was received
	ready   chan struct{} // closed when the endpoint can send and receives
	ended   chan struct{} // closed when Run has returned
	err     error         // of Run, set before ended is closed
}

var _ pipeline.Sender = (*Endpoint)(nil)

// New returns an endpoint. It does no I/O. The error lists all mistakes in cfg.
func New(cfg Config) (*Endpoint, error) {
	err := cfg.validate()
	types, terr := newRegistry(cfg)
	cfg = cfg.withDefaults()
	e := &Endpoint{
		sender:         sender{cfg: cfg, types: types, serializers: cfg.Serializers},
		recoverability: cfg.Recoverability.WithDefaults(),
		bounded:        cfg.bounded(),
		ready:          make(chan struct{}), ended: make(chan struct{}),
	}
	memory := e.recoverability.Memory
	e.failures = failurelog.New(max(memory.Messages, 8*cfg.Concurrency), memory.Bytes)
	e.host = cfg.Host.in(cfg.Name)
	if err := errors.Join(err, terr, e.checkBodies(), e.compose()); err != nil {
		return nil, fmt.Errorf("endpoint %q: invalid configuration: %w", cfg.Name, err)
	}
	return e, nil
}

// compose builds the stages, once.
func (e *Endpoint) compose() error {
	p := &e.cfg.Pipeline
	var errs []error
	e.receive = stage(e, &errs, "Receive", &p.Receive, decode)
	e.logical = stage(e, &errs, "Logical", &p.Logical, invokeAll)
	e.invoke = stage(e, &errs, "Invoke", &p.Invoke, invokeOne)
	e.outgoing = stage(e, &errs, "Outgoing", &p.Outgoing, e.encode)
	e.dispatch = stage(e, &errs, "Dispatch", &p.Dispatch, e.dispatchAll)
	e.recover = stage(e, &errs, "Recover", &p.Recover, recoverEnd)
	e.relayed = stage(e, &errs, "Relay", &p.Relay, e.relayAll)
	e.watchesDispatch, e.watchesRelay = len(p.Dispatch.Names()) > 0, len(p.Relay.Names()) > 0
	// A serializer may keep the body in the values that it returns. JSON copies it.
	keeps := func(s serialization.Serializer) bool { return s != serialization.JSON }
	e.copies = e.copies || slices.ContainsFunc(e.serializers, keeps)
	return errors.Join(errs...)
}

func stage[T any](
	e *Endpoint, errs *[]error, name string, s *pipeline.Stage[T], end pipeline.Func[T],
) pipeline.Func[T] {
	f, err := s.Then(end)
	if err != nil {
		*errs = append(*errs, fmt.Errorf("stage %s: %w", name, err))
	}
	e.copies = e.copies || len(s.Names()) > 0
	return f
}

// WaitReady waits until the endpoint can send and receives, and returns nil while it runs. It
// returns the error of Run where that has failed, [ErrNotRunning] where it has returned nil, and
// the cause of ctx when that ends first.
func (e *Endpoint) WaitReady(ctx context.Context) error {
	select {
	case <-e.ready:
	case <-e.ended:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if !e.over() {
		return nil
	}
	return cmp.Or(e.err, ErrNotRunning)
}

// over reports whether Run has returned.
func (e *Endpoint) over() bool {
	select {
	case <-e.ended:
		return true
	default:
		return false
	}
}

// Send sends m, a registered command or response, to the queue of its route or of [To]. It returns
// nil when the broker has accepted the message, and [ErrNotRunning] before Run is ready.
func (e *Endpoint) Send(ctx context.Context, m any, opts ...SendOption) error {
	return e.send(ctx, m, "", opts, nil)
}

// SendLocal sends m, a registered command or response, to the endpoint's own queue.
func (e *Endpoint) SendLocal(ctx context.Context, m any, opts ...SendOption) error {
	return e.sendLocal(ctx, m, opts, nil)
}

// Publish sends m, a registered event, to the subscribers of its type and of its base types. It
// returns nil when the broker has accepted it, and [ErrNotRunning] before Run is ready.
func (e *Endpoint) Publish(ctx context.Context, m any, opts ...PublishOption) error {
	return e.publish(ctx, m, opts, nil)
}

// Cancel removes a delayed message by its receipt, which [ReceiptIn] stores. It fails with
// [transport.ErrNotFound] when the message has been delivered or cancelled.
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

// RunAll runs endpoints side by side until ctx ends, each with its own transport and retries. Their
// transports may share connections, as those on one PostgreSQL do. An endpoint that fails does not
// stop the others: its error is logged at once. RunAll returns all errors, joined.
//
// Endpoints with one name on one transport receive from one queue, so they must have the same
// handlers. Otherwise an endpoint would receive messages that it does not handle, and RunAll fails
// before any endpoint runs.
func RunAll(ctx context.Context, endpoints ...*Endpoint) error {
	if err := checkNames(endpoints); err != nil {
		for _, e := range endpoints {
			e.refuse(err)
		}
		return err
	}
	errs := make([]error, len(endpoints))
	var wg sync.WaitGroup
	warnOfHosts(ctx, endpoints)
	group, shared := pump.NewGroup(), new(transport.Shared)
	for i, e := range endpoints {
		wg.Go(func() {
			if errs[i] = e.run(ctx, group, shared); errs[i] != nil {
				e.cfg.Logger.ErrorContext(ctx, "an endpoint has ended, others may run on",
					slog.String("endpoint", e.cfg.Name), slog.Any("error", errs[i]))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Handles reports whether the endpoint has a handler for m, a value of a registered message, or for
// a base type of m.
func (e *Endpoint) Handles(m any) bool {
	t, err := e.types.of(m)
	return err == nil && e.types.handles(t)
}

// Policy returns the resilience policy with that name, of Config.Recoverability.Policies or of one
// of its rules, with defaults for its zero fields. It reports false if there is none.
func (e *Endpoint) Policy(name string) (resilience.Policy, bool) {
	return e.recoverability.NamedPolicy(name)
}

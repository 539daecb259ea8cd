package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/testbed"
	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// config returns the configuration that the endpoints of a run share.
func (b *bench) config(name string) endpoint.Config {
	return endpoint.Config{
		Name: name, Transport: b.Transport, Concurrency: b.Concurrency, Logger: b.Log,
		Messages: []endpoint.Message{endpoint.Command[order](orderType)},
		Recoverability: recoverability.Config{
			ErrorQueue: b.errors, Delayed: recoverability.None,
			Quarantine: recoverability.Quarantine{After: recoverability.None}, // there is no queue for it
		},
	}
}

// receiver returns the configuration of the endpoint that is measured.
func (b *bench) receiver() endpoint.Config {
	cfg := b.config(b.in)
	switch {
	case b.Outbox != nil:
		cfg.Outbox, cfg.Remember = b.Outbox, b.Remember
	case b.Work == Atomic:
		cfg.Transactions = endpoint.SendsAtomicWithReceive
	}
	cfg.Handlers = []endpoint.Handler{endpoint.Handle(b.handler())}
	cfg.Pipeline.Receive.Use("bench", b.onReceive)
	cfg.Pipeline.Dispatch.Use("bench", b.onDispatch)
	return cfg
}

// handler returns the handler of the work.
func (b *bench) handler() func(context.Context, *endpoint.Session, *order) error {
	opts := append([]endpoint.SendOption{endpoint.To(b.out)}, b.options(headersInside)...)
	switch b.Work {
	case Loop:
		return func(ctx context.Context, s *endpoint.Session, o *order) error { return s.Send(ctx, o, opts...) }
	case Atomic:
		return func(ctx context.Context, s *endpoint.Session, o *order) error {
			if err := b.table.Add(ctx, s, b.prefix, b.timeline.index(s.MessageID())%businessRows); err != nil {
				return err
			}
			return s.Send(ctx, o, opts...)
		}
	case Dual:
		return func(ctx context.Context, s *endpoint.Session, o *order) error {
			if err := b.write(ctx, b.prefix, b.timeline.index(s.MessageID())%businessRows); err != nil {
				return err
			}
			return s.Send(ctx, o, opts...)
		}
	default:
		return func(context.Context, *endpoint.Session, *order) error { return nil }
	}
}

// onReceive notes the time when a message is received.
func (b *bench) onReceive(next pipeline.Func[*pipeline.Receive]) pipeline.Func[*pipeline.Receive] {
	return func(ctx context.Context, r *pipeline.Receive) error {
		if i := b.timeline.index(r.Message.ID); i >= 0 {
			if b.Rate > 0 {
				b.timeline.stop(i)
			} else {
				b.timeline.begin(i)
			}
		}
		return next(ctx, r)
	}
}

// onDispatch notes the time when a message is completed and its outgoing messages are sent.
func (b *bench) onDispatch(next pipeline.Func[*pipeline.Dispatch]) pipeline.Func[*pipeline.Dispatch] {
	return func(ctx context.Context, d *pipeline.Dispatch) error {
		if err := next(ctx, d); err != nil || d.Incoming == nil {
			return err
		}
		i := b.timeline.index(d.Incoming.Message.ID)
		if i < 0 {
			return nil
		}
		if b.Rate == 0 {
			b.timeline.stop(i)
		}
		if i == 0 {
			b.timeline.sent(d)
		}
		b.timeline.complete(i)
		return nil
	}
}

// measure runs the endpoints of the work.
func (b *bench) measure(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	group, ctx := errgroup.WithContext(ctx)
	work := b.receive
	if b.Work == Send {
		work = b.send
	}
	err := work(ctx, group)
	stop()
	return cmp.Or(group.Wait(), err) // that of the endpoints is the cause of the other
}

// receive measures the endpoint from the moment it receives until all messages are completed and,
// with an outbox, what their handlers have sent has left it.
func (b *bench) receive(ctx context.Context, group *errgroup.Group) (err error) {
	var sender *endpoint.Endpoint
	if b.Rate > 0 {
		if sender, err = testbed.Launch(ctx, group, b.sender()); err != nil {
			return err
		}
	}
	runtime.GC()
	receiver, err := testbed.Launch(ctx, group, b.receiver())
	if err != nil {
		return err
	}
	if err := b.meter.start(b.Profile); err != nil {
		return err
	}
	defer b.meter.stop()
	if sender != nil {
		group.Go(func() error { return b.sendAtRate(ctx, sender) })
	}
	if err := b.await(ctx); err != nil {
		return err
	}
	return b.awaitRelay(ctx, receiver)
}

// await waits until all messages are completed, or none has been for a while.
func (b *bench) await(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	left, since := b.timeline.left.Load(), time.Now()
	for {
		select {
		case <-b.timeline.done:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		if now := b.timeline.left.Load(); now != left {
			left, since = now, time.Now()
		} else if time.Since(since) > stallTime {
			return fmt.Errorf("stalled: %d of %d messages are not completed, and none was for %v", left, b.Messages, stallTime)
		}
	}
}

// outbox is the name of the queue of the outbox, and inbox that of the ids of handled messages.
func (b *bench) outbox() string { return b.in + ".outbox" }

func (b *bench) inbox() string { return b.in + ".handled" }

// openOutbox connects to the database of the outbox, if there is one, and creates the outbox.
func (b *bench) openOutbox(ctx context.Context) (err error) {
	if b.Outbox == nil {
		return nil
	}
	if b.database, err = b.Outbox.Open(ctx, transport.Env{Logger: b.Log, Instance: b.prefix}); err != nil {
		return fmt.Errorf("connect to the outbox: %w", err)
	}
	installer, ok := b.database.(transport.Installer)
	if !ok {
		return errors.New("the database of the outbox cannot create queues")
	}
	plan := transport.Plan{Queues: []transport.Queue{{Name: b.outbox()}}}
	if b.Remember >= 0 {
		plan.Inboxes = []string{b.inbox()}
	}
	return installer.Install(ctx, plan)
}

// awaitRelay waits until what the handlers have stored is sent.
func (b *bench) awaitRelay(ctx context.Context, e *endpoint.Endpoint) error {
	if b.Outbox == nil || b.Work == Receive {
		return nil
	}
	const look = 2 * time.Millisecond
	tick := time.NewTicker(look)
	defer tick.Stop()
	sent, since := int64(0), time.Now()
	for {
		if h := e.Health().Outbox; h != nil {
			if h.Sent >= int64(b.Messages) {
				return nil
			}
			if h.Sent != sent {
				sent, since = h.Sent, time.Now()
			}
		}
		if time.Since(since) > stallTime {
			return fmt.Errorf("stalled: %d of %d messages were sent from the outbox, and none was for %v", sent, b.Messages, stallTime)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// emptied fails if the outbox has messages left.
func (b *bench) emptied(ctx context.Context) error {
	inspector, ok := b.database.(transport.Inspector)
	if !ok {
		return nil
	}
	stats, err := inspector.Inspect(ctx, b.outbox())
	if err != nil {
		return fmt.Errorf("inspect the outbox: %w", err)
	}
	if left := stats[0].Ready + stats[0].Unsettled; left > 0 {
		return fmt.Errorf("%d stored messages are left in the outbox", left)
	}
	return nil
}

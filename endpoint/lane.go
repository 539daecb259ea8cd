package endpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/transport"
)

// reopenTimeout bounds opening the receiver again after a pause.
const reopenTimeout = 30 * time.Second

type handleFunc = func(context.Context, transport.Delivery, *pump.Slot)

// lane is a queue being received from. Its goroutine alone opens and closes the receiver; what
// others want of it they order.
type lane struct {
	queue     string
	logger    *slog.Logger
	reception *reception
	group     *pump.Group
	open      func(ctx context.Context) (*intake, error)
	orders    chan order

	paused atomic.Bool
	intake atomic.Pointer[intake] // nil once a pause has drained it

	resizing    sync.Mutex // held while the pump is told of it
	concurrency int
	limited     bool // one at a time, whatever concurrency is
	slow        bool // one message at a time: see slowStart
}

// intake is a receiver with its pump: there is one from each opening to the pause that follows.
type intake struct {
	receiver transport.Receiver
	pump     *pump.Pump
}

// order is for a lane to be paused or to go on. done has room for the answer.
type order struct {
	pause bool
	done  chan error
}

func (e *Endpoint) openLane(ctx context.Context, live *live, opts transport.ReceiverOptions, concurrency int, handle handleFunc) (*lane, error) {
	l := &lane{
		queue: opts.Queue, concurrency: concurrency, logger: e.cfg.Logger,
		reception: &reception{queue: opts.Queue}, group: live.group, orders: make(chan order),
	}
	watch := e.watch(ctx, l.reception)
	l.open = func(ctx context.Context) (*intake, error) {
		receiver, err := e.openReceiver(ctx, live, opts)
		if err != nil {
			return nil, err
		}
		p := pump.New(pump.Config{
			Receiver: receiver, Limits: live.limits, Queue: opts.Queue, Budget: live.budget,
			Handle: handle, StopTimeout: e.cfg.StopTimeout, Logger: e.cfg.Logger, OnReceive: watch,
		})
		live.group.Join(p)
		return &intake{receiver, p}, nil
	}
	return l, l.begin(ctx)
}

func (e *Endpoint) openReceiver(ctx context.Context, live *live, opts transport.ReceiverOptions) (transport.Receiver, error) {
	receiver, err := live.conn.OpenReceiver(ctx, opts)
	if errors.Is(err, transport.ErrNoQueue) && !e.cfg.Install {
		err = fmt.Errorf("%w: create it with Config.Install or Endpoint.Install", err)
	}
	if err != nil {
		return nil, fmt.Errorf("receive from %q: %w", opts.Queue, err)
	}
	return receiver, nil
}

// begin opens the lane's intake.
func (l *lane) begin(ctx context.Context) error {
	in, err := l.open(ctx)
	if err != nil {
		return err
	}
	l.intake.Store(in)
	l.resize(func() {})
	return nil
}

// run receives until ctx ends, but for the time between a pause and the order to go on.
func (l *lane) run(ctx context.Context) error {
	for {
		pause, err := l.receive(ctx)
		if pause == nil {
			return err
		}
		if err := errors.Join(err, l.close()); err != nil {
			l.logger.WarnContext(ctx, "a receiver could not be closed in order", slog.String("queue", l.queue), slog.Any("error", err))
		}
		l.reception.note(nil) // nothing is received, so nothing fails
		l.logger.InfoContext(ctx, "receiving is paused", slog.String("queue", l.queue))
		pause.done <- nil
		if !l.rest(ctx) {
			return nil
		}
		l.logger.InfoContext(ctx, "receiving goes on", slog.String("queue", l.queue))
	}
}

// receive pumps until the order to pause, which it returns, or until ctx ends. Everything that
// was received has been dealt with then.
func (l *lane) receive(ctx context.Context) (*order, error) {
	pumping, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- l.intake.Load().pump.Run(pumping) }()
	pause := l.await(ctx, true)
	l.paused.Store(pause != nil)
	stop()
	return pause, <-ended
}

// rest waits until the lane is to go on, and can. It is false when ctx ended.
func (l *lane) rest(ctx context.Context) bool {
	for {
		resume := l.await(ctx, false)
		if resume == nil {
			return false
		}
		opening, cancel := context.WithTimeout(ctx, reopenTimeout)
		err := l.begin(opening)
		cancel()
		l.paused.Store(err != nil)
		resume.done <- err
		if err == nil {
			return true
		}
	}
}

// await is the next order to pause, or not to, and nil when ctx ends. Orders for what is so
// already are fulfilled.
func (l *lane) await(ctx context.Context, pause bool) *order {
	for {
		select {
		case <-ctx.Done():
			return nil
		case o := <-l.orders:
			if o.pause == pause {
				return &o
			}
			o.done <- nil
		}
	}
}

// resize makes a change that concerns how many messages are handled at once, and tells the pump.
func (l *lane) resize(change func()) {
	l.resizing.Lock()
	defer l.resizing.Unlock()
	change()
	in := l.intake.Load()
	switch {
	case in == nil:
	case l.limited: // what would be received ahead waits long, and others may take it
		in.pump.SetSerial()
	case l.slow:
		in.pump.SetConcurrency(1)
	default:
		in.pump.SetConcurrency(l.concurrency)
	}
}

// close closes the receiver, if there is one. The pump has ended, or never ran.
func (l *lane) close() error {
	if in := l.intake.Swap(nil); in != nil {
		l.group.Leave(in.pump)
		return in.receiver.Close()
	}
	return nil
}

func closeLanes(lanes []*lane) error {
	var errs []error
	for _, l := range lanes {
		errs = append(errs, l.close())
	}
	return errors.Join(errs...)
}

package demo

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-go/holdfast/endpoint"
)

// process runs the endpoints until all orders have come to an end.
func (d *demo) process(ctx context.Context, before tally) error {
	start := time.Now()
	running, stop := context.WithCancel(ctx)
	defer stop()
	group, running := errgroup.WithContext(running)
	if err := d.start(running, group); err != nil {
		stop()
		if cause := group.Wait(); cause != nil {
			return cause
		}
		return err
	}
	after, err := d.watch(running)
	stop()
	if err := errors.Join(group.Wait(), err); err != nil {
		return err
	}
	interrupted := !after.done()
	if interrupted { // handlers that were running have finished meanwhile
		if after, err = d.ledger.tally(context.WithoutCancel(ctx), len(d.input.Lines)); err != nil {
			return err
		}
	}
	if err := report(d.Out, before, after, time.Since(start)); err != nil {
		return err
	}
	if interrupted && !after.done() {
		return ErrInterrupted
	}
	return nil
}

// start starts the endpoints, subscribers first, so that no event is published before somebody
// listens; and, if nobody has before, the import.
func (d *demo) start(ctx context.Context, group *errgroup.Group) error {
	s := &shop{input: d.input, ledger: d.ledger, transport: d.transport, work: d.Work, log: d.Log}
	if d.Path != "" {
		s.mode = endpoint.SendsAtomicWithReceive
	}
	for _, name := range []string{billing, shipping} {
		if _, err := runEndpoint(ctx, group, func() (*endpoint.Endpoint, error) { return s.subscriber(name) }); err != nil {
			return err
		}
	}
	if _, err := runEndpoint(ctx, group, s.sales); err != nil {
		return err
	}
	importer, err := runEndpoint(ctx, group, s.importer)
	if err != nil {
		return err
	}
	if begun, err := d.ledger.imported(ctx, 0); err != nil || begun {
		return err
	}
	return importer.Send(ctx, ImportLines{First: 0})
}

// runEndpoint makes an endpoint and runs it in group until ctx ends; it returns when it is ready.
func runEndpoint(ctx context.Context, group *errgroup.Group, make func() (*endpoint.Endpoint, error)) (*endpoint.Endpoint, error) {
	e, err := make()
	if err != nil {
		return nil, err
	}
	group.Go(func() error { return e.Run(ctx) })
	select {
	case <-e.Ready():
		return e, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// watch shows the progress until all is done or ctx ends. It returns what is done by then.
func (d *demo) watch(ctx context.Context) (tally, error) {
	const often = 100 * time.Millisecond
	p := newProgress(d.Out, len(d.input.Lines))
	tick := time.NewTicker(often)
	defer tick.Stop()
	for {
		now, err := d.ledger.tally(context.WithoutCancel(ctx), len(d.input.Lines))
		if err != nil {
			return now, err
		}
		p.show(now)
		if now.done() || ctx.Err() != nil {
			p.end(now)
			return now, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

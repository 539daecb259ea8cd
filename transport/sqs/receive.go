package sqs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/internal/batch"
	"github.com/holdfast-go/holdfast/transport"
)

var (
	_ transport.Receiver = (*receiver)(nil)
	_ transport.Renewer  = (*receiver)(nil)
	_ transport.Listener = (*receiver)(nil)
)

// receiving is the part of a conn with the receivers and the in-flight sets of their queues.
type receiving struct {
	*account
	sender        *sender
	subscriptions *subscriptions
	looks         looks

	mu        sync.Mutex             // guards the fields below
	receivers map[*receiver]struct{} // nil after Close
	inFlights map[string]*inFlight
}

// closeReceivers closes the receivers. No further one can be opened.
func (rc *receiving) closeReceivers() {
	rc.mu.Lock()
	receivers := rc.receivers
	rc.receivers = nil
	rc.mu.Unlock()
	var all sync.WaitGroup
	for r := range receivers {
		all.Go(func() { _ = r.Close() }) // never fails
	}
	all.Wait()
}

// release returns the messages that are not settled to their queues.
func (rc *receiving) release() {
	rc.mu.Lock()
	inFlights := slices.Collect(maps.Values(rc.inFlights))
	rc.mu.Unlock()
	var all sync.WaitGroup
	for _, in := range inFlights {
		all.Go(func() { in.release(in.unsettled()) })
	}
	all.Wait()
}

// receiver receives from one queue. It prefetches nothing: each poll requests as many messages as
// the caller.
type receiver struct {
	inFlight *inFlight
	ask      asking      // without the limit
	heard    atomic.Bool // SQS has answered the last poll

	ctx   context.Context //nolint:containedctx // ends with Close
	close context.CancelFunc
	mu    sync.Mutex // guards polls.Add against close
	polls sync.WaitGroup
}

// OpenReceiver fails with ErrNoQueue for a queue that does not exist.
func (rc *receiving) OpenReceiver(
	ctx context.Context, opts transport.ReceiverOptions,
) (transport.Receiver, error) {
	in, err := rc.inFlight(ctx, opts.Queue)
	if errors.Is(err, transport.ErrNoQueue) {
		return nil, fmt.Errorf("%w%s", err, rc.where(ctx))
	}
	if err == nil {
		err = rc.checkReceived(opts.Queue)
	}
	if err != nil {
		return nil, err
	}
	r := &receiver{inFlight: in, ask: asking{wait: pollWait, lease: rc.cfg.Lease, completesFirst: opts.CompletesFirst}}
	r.ctx, r.close = context.WithCancel(context.Background())
	rc.mu.Lock()
	defer rc.mu.Unlock()
	if rc.receivers == nil {
		return nil, transport.ErrClosed
	}
	rc.receivers[r] = struct{}{}
	return r, nil
}

// Window does nothing: a receiver prefetches nothing.
func (r *receiver) Window(int) {}

// Listening implements [transport.Listener].
func (r *receiver) Listening() bool { return r.heard.Load() }

// firstWait is how long the first poll after a failure waits for a message, so that the answer
// shows soon that SQS answers.
const firstWait = time.Second

// Receive polls until there are messages.
func (r *receiver) Receive(ctx context.Context, limit int) ([]transport.Delivery, error) {
	r.mu.Lock()
	if r.ctx.Err() != nil {
		r.mu.Unlock()
		return nil, transport.ErrClosed
	}
	r.polls.Add(1)
	r.mu.Unlock()
	defer r.polls.Done()
	ask := r.ask
	ask.limit = max(1, limit)
	for ctx.Err() == nil {
		ask.wait = r.ask.wait
		if !r.heard.Load() {
			ask.wait = min(ask.wait, firstWait)
		}
		p, err := r.inFlight.poll(ctx, r.ctx, ask)
		r.heard.Store(err == nil)
		if err != nil {
			return nil, err
		}
		ds := make([]transport.Delivery, 0, len(p.ms))
		for i := range p.ms {
			if d := r.inFlight.deliver(&p.ms[i], p); d != nil {
				ds = append(ds, d)
			}
		}
		if len(ds) > 0 {
			return ds, nil
		}
	}
	return nil, ctx.Err()
}

// Close ends the polls and returns their messages to the queue.
func (r *receiver) Close() error {
	rc := r.inFlight.of
	rc.mu.Lock()
	delete(rc.receivers, r)
	rc.mu.Unlock()
	r.mu.Lock()
	r.close()
	r.mu.Unlock()
	r.polls.Wait()
	return nil
}

// looks records what was looked at once. The zero value is ready.
type looks struct {
	queues sync.Map // names of queues that were looked at
	topics sync.Map // ARNs of topics whose subscriptions have no raw delivery
	// unknown has the types of events that arrived by the topic of a base type alone: see
	// warnOfUnknown.
	unknown  sync.Map     // typeOfQueue
	unknowns atomic.Int32 // those in unknown, and in topics
}

// checkReceived returns an error if messages of a queue cannot be settled one by one. It logs, once
// for each queue of an endpoint, a redrive policy that may move messages before their retries are
// over.
func (rc *receiving) checkReceived(queue string) error {
	if strings.HasSuffix(queue, fifoSuffix) && !strings.HasSuffix(queue, delaySuffix) {
		return fmt.Errorf("sqs: queue %q: FIFO queues cannot be received from: a message that is retried would hold up its group. "+
			"Use a standard queue", queue)
	}
	if rc.endpoint == "" || strings.HasSuffix(queue, delaySuffix) || queue == rc.endpoint+DeadLettersSuffix {
		return nil
	}
	if _, again := rc.looks.queues.LoadOrStore(queue, true); !again {
		rc.tasks.Go(func() { rc.lookAtRedrive(queue) })
	}
	return nil
}

func (rc *receiving) lookAtRedrive(queue string) {
	policy, err := rc.redrive(rc.ctx, queue)
	if err == nil && policy.most > 0 && policy.most < fewReceives {
		rc.log.Warn("the queue has a redrive policy that may move messages before their retries are over: set its maxReceiveCount",
			"queue", queue, "maxReceiveCount", policy.most, "to", nameOf(policy.target), "advice", defaultReceiveLimit)
	}
}

// inFlight returns the in-flight set of a queue, which must exist.
func (rc *receiving) inFlight(ctx context.Context, queue string) (*inFlight, error) {
	rc.urls.forget(queue) // it may have been deleted
	url, err := rc.queueURL(ctx, queue)
	if err != nil {
		return nil, err
	}
	rc.mu.Lock()
	defer rc.mu.Unlock()
	in := rc.inFlights[queue]
	if in == nil {
		in = &inFlight{of: rc, queue: queue, url: url, held: make(map[string]*delivery)}
		noneOpen := func() bool { return in.open.Load() <= 0 }
		in.deletes = newBatcher(rc.account, batch.Config[settling]{Linger: completeLinger, NoneExpected: noneOpen},
			func(ss []settling) []error { return ended(ss, in.delete(rc.ctx, ss)) })
		in.hides = newBatcher(rc.account, batch.Config[settling]{Linger: hideLinger},
			func(ss []settling) []error { return ended(ss, in.hide(rc.ctx, ss)) })
		rc.inFlights[queue] = in
	}
	return in, nil
}

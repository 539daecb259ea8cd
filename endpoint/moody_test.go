package endpoint_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// mood is how a queue of a moodyBroker answers.
type mood int8

const (
	wellMood        mood = iota
	silentMood           // accepts nothing and does not answer; what was sent arrives when it is well again
	slowMood             // accepts after two seconds
	unreachableMood      // fails at once, without a message
	missingMood
	busyMood
	refusingMood
	fullMood
	moods
)

func (m mood) String() string {
	return [...]string{"well", "silent", "slow", "unreachable", "missing", "busy", "refusing", "full"}[m]
}

// errRefusing is the error of a queue that refuses messages without a reason.
var errRefusing = fmt.Errorf("the queue refused the message")

// moodyBroker is a broker whose queues answer each in its own way, while the connection lives.
type moodyBroker struct {
	*inmemory.Transport

	away atomic.Bool // there is no connection

	mu      sync.Mutex // guards the rest
	moods   map[string]mood
	changed chan struct{}                // closed at the next change
	tries   map[string][]time.Time       // when an operation with a message was sent to a queue, by "queue/id"
	arrived func(op transport.Operation) // called for each message that is accepted; may be nil
}

func newMoody(broker *inmemory.Transport) *moodyBroker {
	return &moodyBroker{Transport: broker, moods: map[string]mood{}, changed: make(chan struct{}), tries: map[string][]time.Time{}}
}

func (b *moodyBroker) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	conn, err := b.Transport.Open(ctx, env)
	if err != nil {
		return nil, err
	}
	return &moodyConn{conn.(fullConn), b}, nil
}

// set changes the mood of a queue.
func (b *moodyBroker) set(queue string, m mood) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.moods[queue] = m
	close(b.changed)
	b.changed = make(chan struct{})
}

// sent returns how often the message was sent to the queue.
func (b *moodyBroker) sent(queue, id string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.tries[queue+"/"+id])
}

type moodyConn struct {
	fullConn
	b *moodyBroker
}

func (c *moodyConn) Connected() bool { return !c.b.away.Load() }

func (c *moodyConn) Dispatch(ctx context.Context, ops []transport.Operation) ([]transport.Receipt, error) {
	if c.b.away.Load() {
		return nil, transport.FailAll(len(ops), transport.ErrUnreachable)
	}
	errs := make([]error, len(ops))
	var waits []int
	for i := range ops {
		switch m := c.mood(&ops[i]); m {
		case wellMood:
			errs[i] = c.accept(ctx, ops[i])
		case silentMood, slowMood:
			waits = append(waits, i)
		default:
			errs[i] = m.refusal(ops[i].Queue)
		}
	}
	until := time.Now().Add(2 * time.Second)
	for _, i := range waits {
		errs[i] = c.await(ctx, ops[i], until)
	}
	var failed []transport.OpError
	for i, err := range errs {
		if err != nil {
			failed = append(failed, transport.OpError{Index: i, Err: err})
		}
	}
	if failed == nil {
		return nil, nil
	}
	return nil, &transport.DispatchError{Ops: failed, Total: len(ops)}
}

func (m mood) refusal(queue string) error {
	switch m {
	case unreachableMood:
		return transport.ErrUnreachable
	case missingMood:
		return transport.ErrNoQueue
	case busyMood:
		return &transport.BusyError{Queue: queue, Reason: "locked"}
	case fullMood:
		return transport.ErrFull
	default:
		return errRefusing
	}
}

// mood returns the mood of the queue of an operation, and notes the attempt.
func (c *moodyConn) mood(op *transport.Operation) mood {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	key := op.Queue + "/" + op.Message.ID
	c.b.tries[key] = append(c.b.tries[key], time.Now())
	return c.b.moods[op.Queue]
}

func (c *moodyConn) accept(ctx context.Context, op transport.Operation) error {
	_, err := c.fullConn.Dispatch(context.WithoutCancel(ctx), []transport.Operation{op})
	if err == nil && c.b.arrived != nil {
		c.b.arrived(op)
	}
	return err
}

// await waits until a slow queue accepts the operation, or a silent one is so no longer.
func (c *moodyConn) await(ctx context.Context, op transport.Operation, until time.Time) error {
	for {
		c.b.mu.Lock()
		m, changed := c.b.moods[op.Queue], c.b.changed
		c.b.mu.Unlock()
		var done <-chan time.Time
		switch {
		case m == slowMood:
			done = time.After(time.Until(until))
		case m != silentMood:
			return c.accept(ctx, op)
		}
		select {
		case <-done:
			return c.accept(ctx, op)
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), transport.ErrOutcomeUnknown)
		}
	}
}

func (c *moodyConn) Satellites(ctx context.Context) ([]transport.Satellite, error) {
	return c.fullConn.(transport.Satellites).Satellites(ctx)
}

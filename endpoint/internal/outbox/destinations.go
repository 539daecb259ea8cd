package outbox

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

const (
	// destinationThere is the time for which a queue that existed is taken to exist, and
	// destinationUnknown is the time for a queue about which the broker gave no answer.
	destinationThere   = time.Minute
	destinationUnknown = 10 * time.Second
	// lookTimeout bounds a question to the broker.
	lookTimeout = 2 * time.Second
	// maxDestinations bounds the memory of queues: replies may go to any number of queues.
	maxDestinations = 10_000
)

// destinations finds messages that the broker would refuse. The outbox asks before the commit,
// because the writes of the handlers cannot be undone after the commit.
type destinations struct {
	conn   transport.Conn // of the broker
	limits transport.Limits

	mu    sync.Mutex           // guards known
	known map[string]time.Time // until when a queue is taken to exist
}

// check returns a [*transport.DispatchError] with the operations that the broker would refuse.
func (d *destinations) check(ctx context.Context, ops []transport.Operation) error {
	var failed []transport.OpError
	for i := range ops {
		if err := d.checkOne(ctx, &ops[i]); err != nil {
			failed = append(failed, transport.OpError{Index: i, Err: err})
		}
	}
	if failed == nil {
		return nil
	}
	return &transport.DispatchError{Ops: failed, Total: len(ops)}
}

func (d *destinations) checkOne(ctx context.Context, op *transport.Operation) error {
	m := op.Message
	if m == nil || op.Queue == "" && len(op.Types) == 0 {
		return errNoDestination
	}
	if most := d.limits.MaxBody; most > 0 && len(m.Body) > most {
		return &transport.TooLargeError{What: "body", Size: len(m.Body), Max: most}
	}
	if most := d.limits.MaxHeaders; most > 0 && m.Headers.Size() > most {
		return &transport.TooLargeError{What: "headers", Size: m.Headers.Size(), Max: most}
	}
	if checker, ok := d.conn.(transport.Checker); ok {
		sent := *op
		if op.Name != "" { // the broker gets a timer when the timer is due
			sent.Name, sent.After, sent.At = "", 0, time.Time{}
		}
		if err := checker.Check(&sent); err != nil {
			return err
		}
	}
	if op.Queue == "" || d.exists(op.Queue) {
		return nil
	}
	return d.look(ctx, op.Queue)
}

var errNoDestination = errors.New("operation without message, or with neither queue nor types")

func (d *destinations) exists(queue string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Now().Before(d.known[queue])
}

// look asks the broker for a queue. Only [transport.ErrNoQueue] says that the queue is missing: the
// endpoint may have the right to send to a queue and not to inspect the queue, and the broker may be
// away. Further messages do not wait for the answer.
func (d *destinations) look(ctx context.Context, queue string) error {
	inspector, ok := d.conn.(transport.Inspector)
	if !ok {
		return nil
	}
	d.expect(queue, lookTimeout)
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	_, err := inspector.Inspect(ctx, queue)
	switch {
	case err == nil:
		d.expect(queue, destinationThere)
	case errors.Is(err, transport.ErrNoQueue):
		d.expect(queue, 0)
		return err
	default:
		d.expect(queue, destinationUnknown)
	}
	return nil
}

// expect takes a queue to exist for a while.
func (d *destinations) expect(queue string, while time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.known == nil || len(d.known) >= maxDestinations {
		d.known = map[string]time.Time{}
	}
	d.known[queue] = time.Now().Add(while)
}

// destinationOf returns the name of the destination of an operation: the queue, or the type of the
// published event.
func destinationOf(op *transport.Operation) string {
	if op.Queue != "" {
		return op.Queue
	}
	if len(op.Types) > 0 {
		return "events of type " + op.Types[0]
	}
	return ""
}

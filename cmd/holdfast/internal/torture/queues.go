package torture

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

func (a *assignment) quarantine() string { return a.Name + ".quarantine" }

// workQueues are those that are empty in the end.
func (r *run) workQueues() []string { return []string{r.Name, r.quarantine()} }

// inspect returns the number of messages in the work queues, and how long it has to be 0 for the run to end: a broker
// that does not count leased or delayed messages has to show them first.
func (r *run) inspect(ctx context.Context) (left int64, quiet time.Duration, err error) {
	quiet = time.Second
	for _, name := range r.workQueues() {
		stats, err := r.conn.(transport.Inspector).Inspect(ctx, name) //nolint:errcheck // check has found it
		if errors.Is(err, transport.ErrNoQueue) && name != r.Name {
			continue
		}
		if err != nil {
			return 0, 0, fmt.Errorf("inspect: %w", err)
		}
		left += max(0, stats[0].Ready) + max(0, stats[0].Unsettled) + max(0, stats[0].Delayed)
		if stats[0].Unsettled < 0 {
			quiet = max(quiet, time.Second+r.conn.Limits().Lease)
		}
		if stats[0].Delayed < 0 {
			quiet = max(quiet, time.Second+2*retryDelay) // the second and longest
		}
	}
	return left, quiet, nil
}

// parkedMessage is one in the error queue.
type parkedMessage struct {
	n         int // 0 for a foreign message
	id, class string
}

// parked returns the messages of the error queue, and leaves them there.
func (r *run) parked(ctx context.Context) (found []parkedMessage, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	stats, err := r.conn.(transport.Inspector).Inspect(ctx, r.errorQueue()) //nolint:errcheck // check has found it
	if err != nil {
		return nil, err
	}
	count := int(stats[0].Ready + max(0, stats[0].Unsettled))
	if count == 0 {
		return nil, nil
	}
	receiver, err := r.conn.OpenReceiver(ctx, transport.ReceiverOptions{Queue: r.errorQueue()})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, receiver.Close()) }()
	receiver.Window(count)
	var held []transport.Delivery
	defer func() {
		for _, d := range held {
			err = errors.Join(err, d.Release(ctx))
		}
	}()
	for len(held) < count {
		limit := count - len(held)
		if most := r.conn.Limits().MaxReceive; most > 0 {
			limit = min(limit, most)
		}
		ds, err := receiver.Receive(ctx, limit)
		if err != nil {
			return nil, err
		}
		held = append(held, ds...)
	}
	for _, d := range held {
		found = append(found, parkedFrom(d.Message()))
	}
	return found, nil
}

func parkedFrom(m *transport.Message) parkedMessage {
	var job Job
	_ = json.Unmarshal(m.Body, &job) // zero for a foreign message
	return parkedMessage{n: job.N, id: m.ID, class: m.Headers.Get(header.HoldfastFaultClass)}
}

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

// workQueues are those that are empty when all is done.
func (r *run) workQueues() []string { return []string{r.Name, r.quarantine()} }

// allQueues are those that the run has made, with those that the driver has beside an endpoint's. On an error those of the
// driver's that it could not look for are left out.
func (r *run) allQueues(ctx context.Context) ([]string, error) {
	queues := append(r.workQueues(), r.errorQueue())
	own, ok := r.conn.(transport.Satellites)
	if !ok {
		return queues, nil
	}
	found, err := own.Satellites(ctx)
	for _, s := range found {
		queues = append(queues, s.Queue)
	}
	return queues, err
}

// inspect counts the messages that are not dealt with, and says for how long the queues must
// have been empty to be believed: where the broker does not count all, until what is hidden
// has shown.
func (r *run) inspect(ctx context.Context) (left int64, quiet time.Duration, err error) {
	quiet = time.Second
	for _, name := range r.workQueues() {
		stats, err := r.conn.(transport.Inspector).Inspect(ctx, name) //nolint:errcheck // prepare has looked
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
	n         int // 0 when it is none of ours
	id, class string
}

// parked reads the error queue, and leaves it as it is.
func (r *run) parked(ctx context.Context) (found []parkedMessage, err error) {
	const enough = time.Minute
	ctx, cancel := context.WithTimeout(ctx, enough)
	defer cancel()
	stats, err := r.conn.(transport.Inspector).Inspect(ctx, r.errorQueue()) //nolint:errcheck // prepare has looked
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
	_ = json.Unmarshal(m.Body, &job) // one that cannot be read is none of ours
	return parkedMessage{n: job.N, id: m.ID, class: m.Headers.Get(header.HoldfastFaultClass)}
}

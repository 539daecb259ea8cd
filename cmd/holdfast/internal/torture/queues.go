package torture

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/errorqueue"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

// workQueues are those that are empty in the end. The endpoint has a queue of timers in the mode
// Atomic.
func (r *run) workQueues() []string {
	queues := []string{r.Name, r.Name + ".quarantine"}
	if r.Mode == Atomic {
		queues = append(queues, r.outbox())
	}
	return queues
}

// inspect returns the number of messages in the work queues, and how long it has to be 0 for the
// run to end: a broker that does not count leased or delayed messages has to show them first.
func (r *run) inspect(ctx context.Context) (left int64, quiet time.Duration, err error) {
	quiet = time.Second
	for _, name := range r.workQueues() {
		stats, err := r.conn.(transport.Inspector).Inspect(ctx, name) //nolint:errcheck // Run has checked it
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
	stored, err := r.inspectOutbox(ctx)
	return left + stored, quiet, err
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
	q := errorqueue.Queue{Conn: r.conn, Name: r.errorQueue()}
	err = q.Each(ctx, func(m *transport.Message, _ errorqueue.Entry) error {
		var job Job
		_ = json.Unmarshal(m.Body, &job) // zero for a foreign message
		found = append(found, parkedMessage{n: job.N, id: m.ID, class: m.Headers.Get(header.HoldfastFaultClass)})
		return nil
	})
	return found, err
}

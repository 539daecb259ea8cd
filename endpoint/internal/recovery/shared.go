// Package recovery decides what happens to a message that failed, and carries the decision out.
package recovery

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/held"
	"github.com/holdfast-go/holdfast/endpoint/internal/names"
	"github.com/holdfast-go/holdfast/endpoint/internal/notify"
	"github.com/holdfast-go/holdfast/endpoint/internal/overdue"
	"github.com/holdfast-go/holdfast/endpoint/internal/work"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// Shared has the parts that the recoveries of an endpoint share. Its fields are set before the
// first recovery.
type Shared struct {
	Host     fault.Host
	Names    *names.Queues
	Notifier *notify.Notifier
	Calls    *overdue.Watch
	Limits   transport.Limits
	Stopping <-chan struct{} // closed when the endpoint stops
	Room     held.Room       // of messages that wait for their error queue
	Exits    held.Exits      // of these

	// Stage runs stage Recover, which ends with [Recovery.AtEndOfStage].
	Stage pipeline.Func[*pipeline.Recover]
	// OnFinalFailure is called before a message is given up; nil for no function.
	OnFinalFailure func(context.Context, pipeline.Sender, recoverability.Failure) error
	// Commit commits what stage Recover wrote and sent in the outbox; nil without an outbox.
	Commit func(
		ctx context.Context, u *work.Unit, tx transport.Tx, ops, own []transport.Operation,
	) error
	// StoresOthers reports whether the database stores the rows of other messages.
	StoresOthers func(context.Context) bool
	// ReceivesFrom reports whether the endpoint receives from a queue.
	ReceivesFrom func(queue string) bool
	// Accepting returns the queue of the driver for waiting messages; "" without such a queue.
	Accepting func() string

	pauses pauses
	stuck  atomic.Int64 // messages that are not requeued yet
}

// Attempt is an attempt at a message that failed.
type Attempt interface {
	// Origin returns the place of an error that has no stack.
	Origin() fault.Frame
	// NewSession returns a session of stage Recover, and its unit.
	NewSession() (pipeline.Sender, *work.Unit)
	// Recovering returns the value of stage Receive for stage Recover, with a session.
	Recovering(s pipeline.Sender) pipeline.Receive
}

// Stuck returns the number of messages that could be neither settled nor moved and are not requeued
// yet.
func (s *Shared) Stuck() int64 { return s.stuck.Load() }

// StuckPause returns the pause after a message that is stuck.
func (s *Shared) StuckPause() time.Duration { return s.pauses.next() }

// sleep pauses for d, or until the endpoint stops or ctx ends.
func (s *Shared) sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.Stopping:
	case <-ctx.Done():
	}
}

// pauses is a back-off that all stuck messages share.
type pauses struct {
	mu      sync.Mutex // guards the rest
	backoff backoff.Backoff
	last    time.Time
}

const maxHold = 30 * time.Second

// next returns the pause for another message. It starts again at a second when there was none for a
// while.
func (p *pauses) next() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if now.Sub(p.last) > 2*maxHold {
		p.backoff = backoff.Backoff{Min: time.Second, Max: maxHold}
	}
	p.last = now
	return p.backoff.Next()
}

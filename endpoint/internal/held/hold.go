package held

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// look is the time between two looks at the delivery of a held message.
const look = time.Second

// Message is a failed message that waits for an error queue.
type Message interface {
	// TryAgain moves the message to the error queue, once more.
	TryAgain(ctx context.Context) error
	// Leave replaces the message by a copy outside of the process.
	Leave(ctx context.Context)
	// EndsSoon reports whether the broker is about to deliver the message again.
	EndsSoon() bool
	// IsLost reports whether the driver knows that the delivery is lost.
	IsLost() bool
	// LostLease reports whether TryAgain found that the delivery is lost.
	LostLease() bool
	// Drop ends a message whose delivery is lost.
	Drop()
}

// Hold waits until the error queue accepts the message. The message leaves when stopping is closed,
// or ctx or the delivery ends. Hold returns the state of the queue if no other message waits, and
// nil otherwise.
func (p *Place) Hold(ctx context.Context, m Message, stopping <-chan struct{}) *State {
	defer p.Leave() // if the message panics
	looks := time.NewTicker(look)
	defer looks.Stop()
	for {
		lost := false
		select {
		case <-p.turn:
			if err := m.TryAgain(ctx); err != nil {
				p.Refused(err)
				continue
			}
			return p.moved(m)
		case <-looks.C:
			if lost = m.IsLost(); !lost && !m.EndsSoon() {
				continue
			}
		case <-stopping:
		case <-ctx.Done():
			lost = errors.Is(context.Cause(ctx), transport.ErrLeaseLost)
		}
		return p.end(ctx, m, lost)
	}
}

// moved ends the place of a message that was moved, unless the delivery was lost.
func (p *Place) moved(m Message) *State {
	if m.LostLease() {
		return p.Leave()
	}
	return p.Accepted()
}

// end ends the place of a message that was not moved.
func (p *Place) end(ctx context.Context, m Message, lost bool) *State {
	if lost {
		m.Drop()
	} else {
		m.Leave(ctx)
	}
	return p.Leave()
}

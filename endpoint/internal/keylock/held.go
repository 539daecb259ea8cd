package keylock

import (
	"time"

	"github.com/holdfast-go/holdfast/internal/pump"
)

// Held is a delivery's part in the locks. The part lasts for all attempts at the delivery: a
// message gives its keys up when the message is settled, or before that when the message waits for
// something that a message with one of the keys may have. The zero value is for an endpoint without
// keys. A Held is not safe for concurrent use.
type Held struct {
	Locks    *Locks    // nil: no handler has keys
	Arrivals *Arrivals // nil in quarantine, where messages are handled one at a time

	lock   *Lock         // nil: no keys are held
	waited time.Duration // in all
}

// Waited returns the time for which the message has waited for keys.
func (h *Held) Waited() time.Duration { return h.waited }

// Has reports whether the message has the keys.
func (h *Held) Has(keys []Key) bool { return h.lock != nil && h.lock.Holds(keys) }

// Take takes the keys, in the place of those that the message has. If the message has to wait, Take
// calls await with a channel that is closed when the message has the keys and a slot.
func (h *Held) Take(slot *pump.Slot, keys []Key, await func(granted <-chan struct{}) error) error {
	if h.lock != nil {
		h.lock.Leave()
	}
	h.lock = h.Locks.Enter(h.Arrivals, slot, keys)
	granted := h.lock.Granted()
	if granted == nil {
		return nil
	}
	began := time.Now()
	defer func() { h.waited += time.Since(began) }()
	return await(granted)
}

// GiveUp lets the next messages with the keys be handled, and the messages that wait for this
// message to take its keys. The message may take keys again later, behind them.
func (h *Held) GiveUp(slot *pump.Slot) {
	if h.Locks == nil {
		return
	}
	if h.lock != nil {
		h.lock.Leave()
		h.lock = nil
	}
	if h.Arrivals != nil {
		h.Arrivals.Pass(slot)
	}
}

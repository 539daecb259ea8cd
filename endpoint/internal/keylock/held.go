package keylock

import (
	"time"

	"github.com/holdfast-go/holdfast/internal/pump"
)

// Held is a delivery's part in the locks. The part lasts for all attempts at the delivery. A message
// gives its keys up when the message is settled, or earlier if the message waits for something of a
// message with an equal key. The zero value is for an endpoint without keys. A Held is not safe for
// concurrent use.
type Held struct {
	Locks    *Locks    // nil: no handler has keys
	Arrivals *Arrivals // nil in quarantine, where no two messages are handled at once

	lock   *Lock         // nil: no keys are held
	waited time.Duration // in all
}

// Waited returns the time of all waits of the message for keys.
func (h *Held) Waited() time.Duration { return h.waited }

// Has reports whether the message has the keys.
func (h *Held) Has(keys []Key) bool { return h.lock != nil && h.lock.Holds(keys) }

// Take takes the keys, in place of the held keys. If the message has to wait, Take calls await with
// a channel that is closed when the message has the keys and a slot.
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

// GiveUp lets the next messages with the keys be handled, and the messages behind this message take
// keys. The message may take keys again later, at the end of the lines.
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

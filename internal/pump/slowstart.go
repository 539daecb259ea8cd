package pump

import (
	"sync/atomic"
	"time"
)

// slowStartMost bounds a slow start.
const slowStartMost = 5 * time.Second

// A SlowStart makes sources handle one message at a time after a start, until a message without an
// earlier delivery succeeds, for 5 s at most from the first message on. A first handled message
// without an earlier delivery ends the slow start at once. The reason: a message that was delivered
// before may have crashed the process, and each message in flight at the next crash is redelivered
// with a higher delivery count.
//
// The zero value is ready to use; nil does nothing. Arrived, Received and Succeeded are safe for
// concurrent use.
type SlowStart struct {
	sources  []*Source
	phase    atomic.Int32
	received atomic.Bool // a message that handlers receive
}

const (
	startBegun int32 = iota // no message has arrived
	startSlow
	startOver
)

// Add makes a source start slowly. It is called before the source runs.
func (s *SlowStart) Add(source *Source) {
	s.sources = append(s.sources, source)
	source.setSlow(true)
}

// Arrived is called for each message, also for a message that no handler receives.
func (s *SlowStart) Arrived() {
	if s != nil && s.phase.Load() == startBegun && s.phase.CompareAndSwap(startBegun, startSlow) {
		time.AfterFunc(slowStartMost, s.end)
	}
}

// Received is called with the delivery count of each message that handlers receive, after Arrived.
func (s *SlowStart) Received(count int) {
	if s == nil || s.phase.Load() == startOver || s.received.Swap(true) {
		return
	}
	if count < 2 {
		s.end()
	}
}

// Succeeded is called with the delivery count of each message that is processed successfully.
func (s *SlowStart) Succeeded(count int) {
	if s != nil && count < 2 && s.phase.Load() == startSlow {
		s.end()
	}
}

func (s *SlowStart) end() {
	if s.phase.Swap(startOver) == startOver {
		return
	}
	for _, source := range s.sources {
		source.setSlow(false)
	}
}

package pump

import (
	"sync/atomic"
	"time"
)

// slowStartMost bounds a slow start.
const slowStartMost = 5 * time.Second

// A SlowStart makes sources handle one message at a time after a start, until a message without an
// earlier delivery succeeds, for 5 s at most. A first message without an earlier delivery ends it
// at once. The reason: a message that was delivered before may have crashed the process, and each
// message in flight at the next crash is redelivered with a higher delivery count.
//
// The zero value is ready to use; nil does nothing. Received and Succeeded are safe for concurrent
// use.
type SlowStart struct {
	sources []*Source
	phase   atomic.Int32
}

const (
	startBegun int32 = iota // no message has been received
	startSlow
	startOver
)

// Add makes a source start slowly. It is called before the source runs.
func (s *SlowStart) Add(source *Source) {
	s.sources = append(s.sources, source)
	source.setSlow(true)
}

// Received is called with the delivery count of each message that is received.
func (s *SlowStart) Received(count int) {
	switch {
	case s == nil || s.phase.Load() != startBegun:
	case count < 2:
		s.end()
	case s.phase.CompareAndSwap(startBegun, startSlow):
		time.AfterFunc(slowStartMost, s.end)
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

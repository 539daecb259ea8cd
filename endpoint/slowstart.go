package endpoint

import (
	"sync/atomic"
	"time"
)

// slowStartMost is how long an endpoint handles one message at a time after a bad start.
const slowStartMost = 5 * time.Second

// slowStart has an endpoint handle one message at a time after its start, until the first that it
// gets shows that all is well: that has not been handed out before. Where it has, the process may
// have ended over it, and whatever else is in hand when it ends again counts a hand-out too; so the
// endpoint goes on that way until a message succeeds that had not been handed out before, 5 s at
// the most. A nil one is over.
type slowStart struct {
	lanes []*lane
	phase atomic.Int32
}

const (
	starting int32 = iota // nothing has been received
	slowly
	started
)

func newSlowStart(lanes []*lane) *slowStart {
	for _, l := range lanes {
		l.resize(func() { l.slow = true })
	}
	return &slowStart{lanes: lanes}
}

// received takes in that a message was handed out for the nth time.
func (s *slowStart) received(n int) {
	switch {
	case s == nil || s.phase.Load() != starting:
	case n < 2:
		s.end()
	case s.phase.CompareAndSwap(starting, slowly):
		time.AfterFunc(slowStartMost, s.end)
	}
}

// handled takes in that such a message succeeded.
func (s *slowStart) handled(n int) {
	if s != nil && n < 2 && s.phase.Load() == slowly {
		s.end()
	}
}

func (s *slowStart) end() {
	if s.phase.Swap(started) == started {
		return
	}
	for _, l := range s.lanes {
		l.resize(func() { l.slow = false })
	}
}

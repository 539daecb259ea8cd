package endpoint

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/failurelog"
)

// turns keeps what is told of one message in order.
type turns struct {
	waiting atomic.Int32
	mu      sync.Mutex // guards the rest
	last    map[failurelog.Key]*turn
}

// turn is an attempt's, to tell what was done about its message.
type turn struct {
	of     *turns
	key    failurelog.Key
	before <-chan struct{} // closed when the attempt before has told; nil where there was none
	over   chan struct{}
}

// takeTurn comes before the message is settled: after that the next attempt may be faster than
// what tells of this one. Each turn is to be ended.
func (in *incoming) takeTurn() *turn { return in.e.turns.take(in.failureKey()) }

// take returns the next turn to tell of key.
func (ts *turns) take(key failurelog.Key) *turn {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := &turn{of: ts, key: key, over: make(chan struct{})}
	if last := ts.last[key]; last != nil {
		t.before = last.over
	}
	if ts.last == nil {
		ts.last = map[failurelog.Key]*turn{}
	}
	ts.last[key] = t
	return t
}

// wait returns when the turn has come. It has little patience, and so have not too many: where a
// function hangs, order is not worth that all attempts wait for it.
func (t *turn) wait() {
	if t.before == nil {
		return
	}
	defer t.of.waiting.Add(-1)
	if t.of.waiting.Add(1) > maxUnreturned {
		return
	}
	patience := time.NewTimer(notifyTimeout)
	defer patience.Stop()
	select {
	case <-t.before:
	case <-patience.C:
	}
}

// maxUntold is how many notifications are told while their messages are settled already. Over that, a message waits for
// its own, so that functions which cannot keep up slow the endpoint down and miss nothing.
const maxUntold = 50

// tell calls f in turn and ends the turn. A message that is settled no longer counts meanwhile, so that a slow function holds up
// no other, unless the message is handled alone or too much is untold.
func (in *incoming) tell(t *turn, f func()) {
	defer t.end()
	if len(in.e.cfg.Notify) == 0 {
		return
	}
	if in.alone == nil {
		defer in.live.untold.Add(-1)
		if in.live.untold.Add(1) <= maxUntold && in.settled {
			in.slot.Settled()
		}
	}
	t.wait()
	f()
}

func (t *turn) end() {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	close(t.over)
	if t.of.last[t.key] == t {
		delete(t.of.last, t.key)
	}
}

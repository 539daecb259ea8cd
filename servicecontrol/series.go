package servicecontrol

import (
	"cmp"
	"slices"
	"sync"
	"time"
	"unique"
)

// value is one measured value.
type value struct {
	at    int64 // ticks of .NET
	value int64
	tag   unique.Handle[string]
}

const (
	// maxBatch is the number of values after which a message is sent before its time, and the most
	// that one has.
	maxBatch = 2048
	// maxWaiting bounds the values of a series that wait while the queue cannot be reached: about
	// 800 kB.
	maxWaiting = 16 * maxBatch
	// maxTag is the longest tag in bytes. Types have shorter names, but a header may have any text.
	maxTag = 512
)

// series is the values of one metric that wait to be sent. It is safe for concurrent use.
type series struct {
	name string
	full chan<- struct{}

	mu      sync.Mutex // guards the rest
	values  []value
	dropped int
}

func newSeries(name string, full chan<- struct{}) *series { return &series{name: name, full: full} }

// add adds a value. The oldest values are dropped when too many wait.
func (s *series) add(at time.Time, n int64, tag string) {
	v := value{at: ticks(at), value: n, tag: unique.Make(cut(tag, maxTag))}
	s.mu.Lock()
	s.values = append(s.values, v)
	waiting := len(s.values)
	s.trim()
	s.mu.Unlock()
	if waiting%maxBatch == 0 {
		select {
		case s.full <- struct{}{}:
		default:
		}
	}
}

// trim drops the oldest values of those that are too many, and some more, so that this is rare.
func (s *series) trim() {
	if len(s.values) <= maxWaiting {
		return
	}
	n := len(s.values) - maxWaiting + maxBatch
	s.values = slices.Delete(s.values, 0, n)
	s.dropped += n
}

// take removes all values and returns them in batches, each for one message.
func (s *series) take() [][]value {
	s.mu.Lock()
	values := s.values
	s.values = nil
	s.mu.Unlock()
	slices.SortStableFunc(values, func(a, b value) int { return cmp.Compare(a.at, b.at) })
	return batches(values)
}

// putBack returns batches that were not sent.
func (s *series) putBack(unsent [][]value) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values = slices.Concat(append(unsent, s.values)...)
	s.trim()
}

func (s *series) waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.values)
}

// lost returns the number of values that were dropped since the last call.
func (s *series) lost() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.dropped
	s.dropped = 0
	return n
}

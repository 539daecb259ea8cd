package safelog

import (
	"log/slog"
	"sync"
	"time"
)

// Patience is how long a line waits for the handler.
const Patience = 10 * time.Second

// stall has the calls of a handler that run. When a caller has left one, the handler is stalled
// until all of them have returned. It is safe for concurrent use.
type stall struct {
	mu      sync.Mutex    // guards the rest
	running int           // calls of the handler
	left    chan struct{} // closed when the handler stalls; nil while no call runs
	since   time.Time     // when the handler stalled; zero while it is not
	lost    int           // lines since then, with those of the calls that were left
}

// begin counts a call, unless the handler is stalled: then the line is lost. The channel is closed
// when the handler stalls.
func (s *stall) begin() (stalled <-chan struct{}, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.since.IsZero() {
		s.lost++
		return nil, false
	}
	if s.left == nil {
		s.left = make(chan struct{})
	}
	s.running++
	return s.left, true
}

// leave stalls the handler.
func (s *stall) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.since.IsZero() {
		s.since = time.Now()
		close(s.left)
	}
}

// end ends a call. With the last one of a stalled handler it returns since when it was stalled, and
// how many lines were lost.
func (s *stall) end() (since time.Time, lost int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
	if s.running > 0 || s.since.IsZero() {
		return time.Time{}, 0
	}
	since, lost = s.since, s.lost
	s.left, s.since, s.lost = nil, time.Time{}, 0
	return since, lost
}

// Stalled reports whether the handler of a logger that [New] has returned takes no lines, since
// when, and how many are lost.
func Stalled(l *slog.Logger) (since time.Time, lost int, stalled bool) {
	h, ok := l.Handler().(handler)
	if !ok {
		return time.Time{}, 0, false
	}
	h.stall.mu.Lock()
	defer h.stall.mu.Unlock()
	return h.stall.since, h.stall.lost, !h.stall.since.IsZero()
}

// lostLines is the line about lines that were lost.
func lostLines(since time.Time, lost int) slog.Record {
	r := slog.NewRecord(time.Now(), slog.LevelWarn, "the log took no lines for a while, and some are lost", 0)
	r.AddAttrs(slog.Time("since", since), slog.Int("lost", lost))
	return r
}

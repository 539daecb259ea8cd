package harness

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
)

// Log is a buffer for the log of an endpoint. A Log is safe for concurrent use.
type Log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write appends p.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// String returns all text so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Lines returns the lines that contain a text.
func (l *Log) Lines(text string) (found []string) {
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

// shownLines is the most lines of a log that a failed test prints.
const shownLines = 200

// Logger returns a logger of a test. If the test fails, the test prints the last 200 lines.
func Logger(t testing.TB) *slog.Logger {
	r := &recent{}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of the endpoint:\n%s", r)
		}
	})
	return slog.New(slog.NewTextHandler(r, nil))
}

// recent keeps the last lines that are written. A call of Write is a line.
type recent struct {
	mu    sync.Mutex
	lines [shownLines]string
	n     int
}

func (r *recent) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines[r.n%shownLines] = string(p)
	r.n++
	return len(p), nil
}

func (r *recent) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	for i := max(0, r.n-shownLines); i < r.n; i++ {
		b.WriteString(r.lines[i%shownLines])
	}
	return b.String()
}

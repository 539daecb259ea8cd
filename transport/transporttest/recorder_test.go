package transporttest

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// recorder is a test that may fail without failing the test that it is part of.
type recorder struct {
	testing.TB // for what is not recorded

	mu       sync.Mutex // guards what follows
	failures []string
	log      []string
	cleanups []func()
}

// record runs f as a test of its own would be run, and returns how that went.
func record(tb testing.TB, f func(testing.TB)) *recorder {
	tb.Helper()
	r := &recorder{TB: tb}
	r.run(func() { f(r) })
	for clean := r.pop(); clean != nil; clean = r.pop() {
		r.run(clean)
	}
	return r
}

// run keeps the end of a failed test to its own goroutine.
func (r *recorder) run(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

func (r *recorder) pop() func() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.cleanups) == 0 {
		return nil
	}
	last := len(r.cleanups) - 1
	clean := r.cleanups[last]
	r.cleanups = r.cleanups[:last]
	return clean
}

func (r *recorder) fail(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, text)
}

func (r *recorder) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(append(r.failures, r.log...), "\n")
}

func (r *recorder) Helper() {}

func (r *recorder) Cleanup(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanups = append(r.cleanups, f)
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.failures) > 0
}

func (r *recorder) Log(args ...any) { r.Logf("%s", fmt.Sprintln(args...)) }

func (r *recorder) Logf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = append(r.log, fmt.Sprintf(format, args...))
}

func (r *recorder) Error(args ...any)                 { r.fail(fmt.Sprintln(args...)) }
func (r *recorder) Errorf(format string, args ...any) { r.fail(fmt.Sprintf(format, args...)) }
func (r *recorder) Fail()                             { r.fail("failed") }

func (r *recorder) Fatal(args ...any) {
	r.Error(args...)
	r.FailNow()
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	r.FailNow()
}

func (r *recorder) FailNow() {
	if !r.Failed() {
		r.Fail()
	}
	runtime.Goexit()
}

package sqs

import "sync"

// tasks are the goroutines of a conn. One that is done is kept for the next task: its stack has grown to what the SDK
// needs, and growing a new one for each request takes a noticeable part of the request's time.
type tasks struct {
	mu      sync.Mutex // guards what follows, and adding to all against waiting for it
	stopped bool
	spare   []chan func() // of goroutines that wait for a task, the last one first

	all sync.WaitGroup
}

// maxSpare bounds the goroutines that are kept: as many as there are connections for.
const maxSpare = connsPerHost

// start runs f in a goroutine, unless stop has been called.
func (t *tasks) start(f func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopped {
		return false
	}
	if last := len(t.spare) - 1; last >= 0 {
		t.spare[last] <- f // has room: its goroutine has taken the one before
		t.spare = t.spare[:last]
		return true
	}
	t.all.Go(func() { t.work(f) })
	return true
}

// work runs f and whatever comes afterwards.
func (t *tasks) work(f func()) {
	next := make(chan func(), 1)
	for f != nil {
		f()
		f = nil // what it holds is not kept while waiting
		if t.keep(next) {
			f = <-next
		}
	}
}

// keep tells whether a goroutine is to wait for a task, which comes over next; nil when none will.
func (t *tasks) keep(next chan func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopped || len(t.spare) == maxSpare {
		return false
	}
	t.spare = append(t.spare, next)
	return true
}

// stop lets nothing start any more and waits for what runs.
func (t *tasks) stop() {
	t.mu.Lock()
	t.stopped = true
	for _, next := range t.spare {
		close(next)
	}
	t.spare = nil
	t.mu.Unlock()
	t.all.Wait()
}

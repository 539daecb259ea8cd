package schedule

import "sync"

// maxReturned is the number of runs that are remembered: far more than those that are repeated at a
// time.
const maxReturned = 1000

// returnedRuns remembers the last runs of this process whose handlers have returned. The endpoint
// repeats a run whose transaction lost a conflict, which is neither a failed attempt nor one that
// ended with its process.
type returnedRuns struct {
	mu   sync.Mutex
	runs map[string]bool
	ring [maxReturned]string
	next int
}

func (r *returnedRuns) add(run string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.runs == nil {
		r.runs = map[string]bool{}
	}
	delete(r.runs, r.ring[r.next])
	r.runs[run], r.ring[r.next] = true, run
	r.next = (r.next + 1) % maxReturned
}

func (r *returnedRuns) has(run string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.runs[run]
}

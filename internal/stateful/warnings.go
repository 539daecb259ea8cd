package stateful

import (
	"slices"
	"sync"
)

// Warnings are the warnings of the parts of a program about an endpoint, for its health. The zero
// value has none. It is safe for concurrent use.
type Warnings struct {
	mu sync.Mutex
	of map[string][]string
}

// Set sets the warnings of a part of the program, in place of its last ones.
func (w *Warnings) Set(part string, warnings []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of == nil {
		w.of = map[string][]string{}
	}
	w.of[part] = slices.Clone(warnings)
}

// All returns the warnings of all parts.
func (w *Warnings) All() (all []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, warnings := range w.of {
		all = append(all, warnings...)
	}
	slices.Sort(all)
	return all
}

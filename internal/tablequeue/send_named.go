package tablequeue

import (
	"crypto/sha256"
	"errors"
	"slices"
)

// ErrNoTimers is wrapped by the error of a named row for a queue without timers. A store whose
// tables may lack what named rows need returns it from Flush, Complete and InsertIn.
var ErrNoTimers = errors.New(`it has no timers: run the endpoint's installer, or the script that "holdfast sql script" prints`)

var errNamedEvent = errors.New("an operation with a name has no queue")

// hashOf returns what stores have of a name, which may be of any length and content.
func hashOf(name string) (hash [16]byte) {
	sum := sha256.Sum256([]byte(name))
	copy(hash[:], sum[:])
	return hash
}

// lastOfEach returns rows with the last row of each name only: the others are replaced or removed
// by it, in the same transaction.
func lastOfEach(rows []Row) []Row {
	if !slices.ContainsFunc(rows, func(r Row) bool { return r.Named() }) {
		return rows
	}
	type key struct {
		queue string
		name  [16]byte
	}
	last := map[key]int{}
	for i := range rows {
		if r := &rows[i]; r.Named() {
			last[key{r.Queue, r.Name}] = i
		}
	}
	kept := rows[:0]
	for i := range rows {
		if r := &rows[i]; !r.Named() || last[key{r.Queue, r.Name}] == i {
			kept = append(kept, *r)
		}
	}
	clear(rows[len(kept):])
	return kept
}

package torture

import (
	"fmt"
	"maps"
	"slices"

	"github.com/holdfast-go/holdfast/recoverability"
)

// Report is the result of a run.
type Report struct {
	Sent            int         `json:"sent"`
	Processed       int         `json:"processed"`     // distinct messages whose handler returned nil
	Lost            int         `json:"lost"`          // neither processed nor in the error queue, nor anywhere else
	HandledTwice    int         `json:"handled_twice"` // or more often
	PoisonParked    int         `json:"poison_parked"`
	InnocentsParked int         `json:"innocents_parked"`
	MaxAttempts     int         `json:"max_attempts"` // the most starts of a handler with one message
	Restarts        int         `json:"restarts"`
	Seconds         float64     `json:"seconds"`
	Kills           int         `json:"kills"`
	Unfinished      int64       `json:"unfinished"` // messages in the queues when the time was up
	Seed            uint64      `json:"seed"`
	Plan            string      `json:"plan"`                // the same for the same kills, poison and failures
	Broken          []Breach    `json:"broken"`              // the invariants that did not hold
	KillList        []Kill      `json:"kill_list,omitempty"` // the kills that hit a running worker
	Outbox          *Sent       `json:"outbox,omitempty"`    // nil without one
	Attempts        map[int]int `json:"attempts"`            // the numbers of messages by starts of a handler
}

// Breach is an invariant that broke, with the messages that show it.
type Breach struct {
	Invariant string   `json:"invariant"`
	Messages  []string `json:"messages"` // their ids; perhaps none when not finished
}

// OK reports whether all invariants held.
func (r *Report) OK() bool { return r != nil && len(r.Broken) == 0 }

// verify compares the plan with the ledger and the error queue; left is the number of messages in
// the queues.
func verify(p *plan, a *assignment, got records, parked []parkedMessage, left int64) *Report {
	r := &Report{
		Sent: a.Messages, Processed: len(got.done), Unfinished: left, Seed: a.Seed, Plan: p.hash(),
		Broken: []Breach{}, Attempts: map[int]int{},
	}
	var missing, twice, loose, innocents []string
	inError, byGuard := map[int]bool{}, map[int]bool{}
	for _, m := range parked {
		inError[m.n] = true
		byGuard[m.n] = byGuard[m.n] || m.class == recoverability.ClassCrashLoop
		if _, poison := p.poison[m.n]; !poison && !slices.Contains(innocents, m.id) {
			innocents = append(innocents, m.id)
		}
	}
	for n := 1; n <= a.Messages; n++ {
		_, poison := p.poison[n]
		switch {
		case poison && byGuard[n]:
			r.PoisonParked++
		case poison:
			loose = append(loose, a.id(n))
		}
		if got.done[n] == 0 && !inError[n] {
			missing = append(missing, a.id(n))
		}
		if got.done[n] > 1 {
			twice = append(twice, a.id(n))
		}
	}
	for _, starts := range got.started {
		r.MaxAttempts = max(r.MaxAttempts, starts)
		r.Attempts[starts]++
	}
	r.HandledTwice, r.InnocentsParked = len(twice), len(innocents)
	if left > 0 {
		text := fmt.Sprintf("not finished: the time is up and the queues still hold %d messages", left)
		r.Broken = append(r.Broken, Breach{text, missing})
	} else {
		r.Lost = len(missing)
		r.breach("lost: neither processed nor in the error queue", missing)
	}
	r.breach("poison is not in the error queue with class "+recoverability.ClassCrashLoop, loose)
	r.breach("innocent messages are in the error queue", innocents)
	switch a.Mode {
	case ReceiveOnly:
	case Atomic:
		r.breach("handled more than once, in atomic mode", twice)
	case Outbox:
		r.breach("handled more than once, with an outbox", twice)
		r.verifySent(a, got)
	}
	var strangers []string
	for _, n := range slices.Sorted(maps.Keys(got.done)) {
		if n < 1 || n > a.Messages {
			strangers = append(strangers, a.id(n))
		}
	}
	r.breach("processed, but never sent", strangers)
	return r
}

func (r *Report) breach(invariant string, ids []string) {
	if len(ids) > 0 {
		r.Broken = append(r.Broken, Breach{invariant, ids})
	}
}

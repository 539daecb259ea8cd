package recoverability

import (
	"time"

	"github.com/holdfast-go/holdfast/header"
)

// Failure is a message that could not be processed.
type Failure struct {
	// Err is what the handler, a behavior or the dispatch returned.
	Err error
	// MessageID, Type, Headers and Body are the message as it was received. Type is
	// its most concrete wire name, or "" when it has none. Headers and Body are for looking
	// at: what is moved or sent again is the original. Native are the broker's own properties of
	// it; they must not be changed.
	MessageID string
	Type      string
	Headers   header.Map
	Body      []byte
	Native    map[string]string
	// Queue is where it was received from.
	Queue string
	// Attempt is how often the message was handed out in this cycle, and
	// AttemptExact whether the broker counted that.
	Attempt      int
	AttemptExact bool
	// Immediate is the number of failures in this cycle, this one included: 1 on
	// the first. A hand-out lost to a crash counts too where the broker counts.
	Immediate int
	// Handled is how many failures of this cycle this process has seen, this one included, and
	// Lost how often it lost the lease before the message was dealt with. Where the broker counts,
	// the hand-outs beyond the two were crashes, or somebody else's.
	Handled, Lost int
	// Quarantined is how often the message was handed out in Queue before it was moved to
	// quarantine, where it failed; 0 when it did not fail there. Attempt counts anew there.
	Quarantined int
	// Delayed is the number of delayed retries already made: 0 in the first cycle.
	Delayed int
	// FirstFailure is when the message first failed, over all cycles.
	FirstFailure time.Time
	// Now is the time of this failure, and Instance the process.
	Now      time.Time
	Instance string
	// History are the last failures before this one that are still known, oldest first: those of
	// this process and this cycle, and what the message brought along.
	History []Past
	// Config is what the endpoint retries by. What the transport or the transaction mode cannot do is
	// [None] there.
	Config Config
}

// Past is an earlier failure of a message.
type Past struct {
	Time     time.Time `json:"t"`
	Attempt  int       `json:"n,omitempty"` // in its cycle, from 1; 0 if unknown
	Delayed  int       `json:"d,omitempty"` // delayed retries before it
	Class    string    `json:"c"`           // of the error: see [Class]
	Text     string    `json:"e"`           // the beginning of the error's text
	Instance string    `json:"i,omitempty"` // the process
}

// Retries are numbers of retries. Unlike in a [Config], 0 is none.
type Retries struct {
	Immediate, Delayed int
}

// Allowed is how often the message may be retried: as often as Config says, with the rule
// for this failure. What the transport or the transaction mode cannot do is 0.
func (f Failure) Allowed() Retries {
	c, _ := f.Config.WithDefaults().ruled(f)
	return Retries{max(0, c.Immediate), max(0, c.Delayed)}
}

// Decide is what the default policy does about it: [Config.Decide] of Config.
func (f Failure) Decide() Action { return f.Config.Decide(f) }

// Unrecoverable tells whether another attempt would be in vain: Err was marked by the function
// [Unrecoverable], or Config means it.
func (f Failure) Unrecoverable() bool { return f.Config.unrecoverable(f.Err) }

// OfType tells whether the message is of the type with that wire name, or has it among its
// base types.
func (f Failure) OfType(name string) bool {
	if f.Type == name {
		return true
	}
	for other := range header.TypeNames(f.Headers.Get(header.EnclosedMessageTypes)) {
		if other == name {
			return true
		}
	}
	return false
}

package recoverability

import (
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/resilience"
)

// Failure describes a message that could not be processed.
type Failure struct {
	// Err is the error of the handler, of a behavior or of the dispatch.
	Err error
	// MessageID, Type, Headers and Body are those of the received message. Type is its most
	// concrete wire name, or "". Changes of Headers and Body have no effect: copies are made of the
	// original. Native are the broker's properties of the message; they must not be changed.
	MessageID string
	Type      string
	Headers   header.Map
	Body      []byte
	Native    map[string]string
	// Queue is the queue that the message was received from.
	Queue string
	// Attempt is the delivery count in this cycle, and AttemptExact reports whether the broker
	// counted.
	Attempt      int
	AttemptExact bool
	// Immediate is the number of failures in this cycle, this one included. Where the broker
	// counts, a delivery that was lost in a crash counts too.
	Immediate int
	// Handled is the number of failures of this cycle in this process, this one included, and Lost
	// the number of leases that it lost before the message was settled. Where the broker counts,
	// the other deliveries were crashes, or those of other processes.
	Handled, Lost int
	// Quarantined is, for a message that failed in quarantine, its delivery count in Queue before;
	// otherwise 0. Attempt starts at 1 in quarantine.
	Quarantined int
	// Delayed is the number of delayed retries so far: 0 in the first cycle.
	Delayed int
	// Inline is the number of inline retries so far in this delivery.
	Inline int
	// FirstFailure is the time of the first failure, over all cycles.
	FirstFailure time.Time
	// Now is the time of this failure, and Instance the process.
	Now      time.Time
	Instance string
	// History holds the latest known failures before this one, oldest first: those in the headers
	// of the message, and those of this cycle in this process.
	History []Past
	// Config is that of the endpoint, with [None] for retries that the transport or the transaction
	// mode does not offer.
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

// Allowed returns the number of retries of Config, with the rule for this failure, or of its policy
// if that is deferred. Inline retries are neither immediate nor delayed.
func (f Failure) Allowed() Retries {
	c, rule := f.Config.WithDefaults().ruled(f)
	switch use := c.use(f, rule); use.Mode {
	case resilience.InlineMode:
		return Retries{}
	case resilience.DeferredMode:
		return Retries{Delayed: use.Policy.Retries()}
	}
	return Retries{Immediate: max(0, c.Immediate), Delayed: max(0, c.Delayed)}
}

// Decide returns the action of the default policy, [Config.Decide].
func (f Failure) Decide() Action { return f.Config.Decide(f) }

// Resilience returns the policy by which the message is retried and how: the one that the message
// names, or that of the first rule that matches. The zero Use means that Config's numbers of
// retries count.
func (f Failure) Resilience() resilience.Use {
	c, rule := f.Config.ruled(f)
	return c.use(f, rule)
}

// Unrecoverable reports whether Err was marked by the function [Unrecoverable] or
// [resilience.NonRetryable], or is one of Config.Unrecoverable.
func (f Failure) Unrecoverable() bool { return f.Config.unrecoverable(f.Err) }

// OfType reports whether the message has the type with a wire name, or has it as a base type.
func (f Failure) OfType(name string) bool {
	for other := range header.TypeNames(f.Headers.Get(header.EnclosedMessageTypes)) {
		if other == name {
			return true
		}
	}
	return f.Type == name
}

// Mendable reports whether another attempt may succeed: the error is not unrecoverable, and no rule
// has an Action for it.
func (f Failure) Mendable() bool {
	_, rule := f.Config.ruled(f)
	return rule.Action == nil && !f.Unrecoverable()
}

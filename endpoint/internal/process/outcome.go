package process

import (
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/recovery"
)

// outcome is how an attempt at a message ended. Guards have outcomes too: a guard ends the
// processing of a message before an attempt, or the attempt before the handlers.
//
//sumtype:decl
type outcome interface{ isOutcome() }

type (
	// done: the message was handled, now or before, and is settled. The success is recorded.
	done struct{}
	// over: nothing is left to do about the message, and nothing is recorded. The message is
	// settled, or the lease is lost, or the broker delivers the message again by itself.
	over struct{}
	// again: another attempt follows within the delivery.
	again struct{ after *wait } // nil: at once, as far as the rate limit allows
	// back: the message returns to its queue.
	back struct{ by way }
	// failed: recoverability decides. The message may be settled already, when a behavior failed
	// afterwards.
	failed struct{ err error }
)

func (done) isOutcome()   {}
func (over) isOutcome()   {}
func (again) isOutcome()  {}
func (back) isOutcome()   {}
func (failed) isOutcome() {}

// way is how a message returns to its queue. Only stuck uses up a retry.
//
//sumtype:decl
type way interface{ isWay() }

type (
	// released: the message returns as it is. The broker may count the delivery.
	released struct{}
	// untouched: the delivery does not count. Where the broker would count a release, the message
	// returns as a copy that is due after a while.
	untouched struct{ after time.Duration }
	// throttled: attempts are limited. The message returns as a copy, even where a release does not
	// count: the broker would deliver a released message again at once.
	throttled struct{}
	// behind: a queue that the message sends to takes no messages. The message waits in the queue of
	// the endpoint until the busy queue takes messages.
	behind struct{ queue string }
	// stuck: the message could be neither settled nor moved. The message was reported, and is
	// requeued after a pause.
	stuck struct{ recovery.Stuck }
)

func (released) isWay()  {}
func (untouched) isWay() {}
func (throttled) isWay() {}
func (behind) isWay()    {}
func (stuck) isWay()     {}

// wait is the time between two attempts at a message within one delivery.
type wait struct {
	after time.Duration   // at most; forever for no bound
	event <-chan struct{} // closed when the wait is over; nil for no event
	keeps kept
	late  way // if the broker is about to deliver the message again; nil: the attempt is made at once
}

// forever is the time of a wait without a bound: only the event ends the wait.
const forever time.Duration = -1

// kept is what a message keeps during a wait.
type kept int8

const (
	keepsNothing kept = iota
	keepsKeys
	// keepsSlot: the message keeps the keys too. The wait is short: the stop of the endpoint does
	// not end the wait.
	keepsSlot
)

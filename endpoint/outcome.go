package endpoint

import (
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/recovery"
)

// outcome is how an attempt at a message ended. Guards have outcomes too: they end the processing
// of a message before an attempt, or the attempt before its handlers.
//
//sumtype:decl
type outcome interface{ isOutcome() }

type (
	// done: the message was handled, now or before, and is settled. The success is recorded.
	done struct{}
	// over: nothing is left to do about the message, and nothing is recorded. The message is
	// settled, or its lease is lost, or the broker delivers the message again by itself.
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
	// behind: a queue that the message sends to takes no messages. The message waits in its queue
	// until the other one does.
	behind struct{ queue string }
	// stuck: the message could be neither settled nor moved. It was reported, and is requeued after
	// a pause.
	stuck struct{ recovery.Stuck }
)

func (released) isWay()  {}
func (untouched) isWay() {}
func (throttled) isWay() {}
func (behind) isWay()    {}
func (stuck) isWay()     {}

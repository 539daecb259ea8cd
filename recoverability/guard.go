package recoverability

import (
	"fmt"
	"time"
)

// DefaultCrashes is the default of [Quarantine].Crashes, and the least default of After.
const DefaultCrashes = 3

const (
	// DefaultIdle is the default of [Quarantine].Idle.
	DefaultIdle = time.Minute
	leastIdle   = 5 * time.Second
)

// ClassCrashLoop is the class of messages that crashed the process again and again while it
// processed them exclusively.
const ClassCrashLoop = "crash-loop"

// Quarantine protects against messages that crash the process, by a fatal error that cannot be
// recovered from or by their use of memory. There is no error of such a message, only its delivery
// count. That count also grows for messages that were in flight beside it. So a suspected message
// is moved to quarantine unhandled, where it is processed exclusively, and only crashes there move
// it to the error queue. A zero field is its default.
type Quarantine struct {
	// After is the largest delivery count in the message's queue; the next delivery is moved to
	// quarantine. Default: the number of attempts in a cycle, at least 3. A lower number also
	// quarantines messages that only fail, and so costs them their immediate retries. [None] for no
	// quarantine.
	After int
	// Crashes is the largest delivery count in quarantine; the next delivery is moved to the error
	// queue unhandled. Default: 3.
	Crashes int
	// Idle is the time between two looks at the quarantine queue while it is empty; at least 5 s,
	// which is the time while messages wait there. A look is a request, which some brokers charge
	// for. An instance that moves a message there looks at once, so a longer time only delays a
	// message whose instance ends before it has processed the message. Default: 1 min.
	Idle time.Duration
}

// CrashLoopError is the error of a message that [Quarantine] moves to the error queue, without a
// call of its handlers.
type CrashLoopError struct {
	// Queue is the message's queue before it was moved to quarantine, and Attempts the delivery
	// count there.
	Queue    string
	Attempts int
	// Crashes is the number of deliveries in quarantine that were not settled: the process crashed,
	// or lost the lease or the connection.
	Crashes int
}

func (e *CrashLoopError) Error() string {
	return fmt.Sprintf("crash loop: the process crashed or lost the message %d times while processing it in quarantine "+
		"(%d deliveries in queue %q before)", e.Crashes, e.Attempts, e.Queue)
}

// FaultClass returns [ClassCrashLoop].
func (e *CrashLoopError) FaultClass() string { return ClassCrashLoop }

package recoverability

import "fmt"

// DefaultCrashes is [Quarantine].Crashes unless set, and the least that After is by default.
const DefaultCrashes = 3

// ClassCrashLoop is the class of messages that were parked because the process ended each time it
// handled them alone.
const ClassCrashLoop = "crash-loop"

// Quarantine is the guard against messages that end the process: by a fatal error that no
// handler can recover from, or because they take all its memory. No error tells of them, only the
// count of hand-outs. But that grows for innocent neighbours too, so by itself it parks nobody: the
// message is moved to quarantine unhandled, and what counts is what happens there, where it
// is handled with nothing beside it. A zero field is its default.
type Quarantine struct {
	// After is how often a message may be handed out in its queue; with the next hand-out it is
	// moved to quarantine. Unless set it is the number of tries that a message has in a cycle, and 3
	// at the least. Less than that quarantines messages which only fail, where they are not retried
	// at once. [None] is no guard.
	After int
	// Crashes is how often the process may end while it handles the message in quarantine. Handed out
	// once more, it goes to the error queue unhandled: 3 unless set.
	Crashes int
}

// On tells whether there is a guard.
func (q Quarantine) On() bool { return q.After != None }

// Suspect tells whether a message is to be moved to quarantine when it is handed out in its queue
// for the nth time.
func (q Quarantine) Suspect(n int) bool { return q.On() && n > q.After }

// Parked tells whether a message is to go to the error queue unhandled when it is
// handed out in quarantine for the nth time.
func (q Quarantine) Parked(n int) bool { return n > q.Crashes }

// quarantine is c's with its defaults.
func (c Config) quarantine() Quarantine {
	q := c.Quarantine
	if q.Crashes == 0 {
		q.Crashes = DefaultCrashes
	}
	if q.After == 0 {
		q.After = max(c.Immediate+1, DefaultCrashes)
		for _, r := range c.Rules {
			q.After = max(q.After, r.Immediate+1)
		}
	}
	return q
}

func (q Quarantine) validate(bad func(format string, args ...any)) {
	if q.After < None {
		bad("Quarantine.After is %d: use None for no guard", q.After)
	}
	if q.Crashes < 0 {
		bad("Quarantine.Crashes is %d: it must be positive", q.Crashes)
	}
}

// CrashLoopError is why a message was parked by the guard of [Quarantine]. No handler was
// called with it that time.
type CrashLoopError struct {
	// Queue is where the message was received from before it was moved to quarantine, and Attempts
	// how often.
	Queue    string
	Attempts int
	// Crashes is how often it was handed out in quarantine without coming to an end: because the
	// process ended, or lost the lease or the connection.
	Crashes int
}

func (e *CrashLoopError) Error() string {
	return fmt.Sprintf("handled alone in quarantine, the message came to no end %d times: the process ended, or lost it; before that there were %d hand-outs in queue %q",
		e.Crashes, e.Attempts, e.Queue)
}

// FaultClass is [ClassCrashLoop].
func (e *CrashLoopError) FaultClass() string { return ClassCrashLoop }

package recoverability

import (
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/header"
)

// Failure is a message that could not be processed.
type Failure struct {
	// Err is what the handler, a behavior or the dispatch returned.
	Err error
	// MessageID, Type, Headers and Body are the message as it was received. Type is
	// its most concrete wire name, or "" when it has none. Headers and Body are the message's
	// own, which copies are made of: a policy must not change them.
	MessageID string
	Type      string
	Headers   header.Map
	Body      []byte
	// Queue is where it was received from.
	Queue string
	// Attempt is how often the message was handed out in this cycle, and
	// AttemptExact whether the broker counted that.
	Attempt      int
	AttemptExact bool
	// Immediate is the number of failures in this cycle, this one included: 1 on
	// the first. A hand-out lost to a crash counts too where the broker counts.
	Immediate int
	// Delayed is the number of delayed retries already made: 0 in the first cycle.
	Delayed int
	// FirstFailure is when the message first failed, over all cycles.
	FirstFailure time.Time
	// Now is the time of this failure.
	Now time.Time
}

// Policy decides. It is called by many goroutines at once, must not block, and may
// call [Config.Decide] for what it does not want to decide itself.
type Policy func(Failure) Action

// Off turns a kind of retry off, where a zero would mean the default.
const Off = -1

// Defaults of [Config].
const (
	DefaultImmediate    = 5
	DefaultDelayed      = 3
	DefaultTimeIncrease = 10 * time.Second
	DefaultErrorQueue   = "error"
)

// maxRetryTime is how long after its first failure a message is still retried
// with a delay.
const maxRetryTime = 24 * time.Hour

// Config are the numbers of the default policy. A zero field is its default.
type Config struct {
	// Immediate is how often a message is retried at once, in each cycle: 5 unless
	// set, [Off] for never.
	Immediate int
	// Delayed is how many cycles follow the first, each after a delay: 3 unless
	// set, [Off] for none.
	Delayed int
	// TimeIncrease is what each delay is longer than the one before: 10 s unless set.
	TimeIncrease time.Duration
	// ErrorQueue is where messages go that were given up: "error" unless set.
	ErrorQueue string
	// Policy decides instead of Decide. Nil is Decide.
	Policy Policy
}

// WithDefaults is c with defaults for its zero fields. [Off] stays Off.
func (c Config) WithDefaults() Config {
	if c.Immediate == 0 {
		c.Immediate = DefaultImmediate
	}
	if c.Delayed == 0 {
		c.Delayed = DefaultDelayed
	}
	if c.TimeIncrease == 0 {
		c.TimeIncrease = DefaultTimeIncrease
	}
	if c.ErrorQueue == "" {
		c.ErrorQueue = DefaultErrorQueue
	}
	return c
}

// Validate reports all that is wrong with c, joined.
func (c Config) Validate() error {
	var errs []error
	if c.Immediate < Off {
		errs = append(errs, fmt.Errorf("recoverability: Immediate is %d: use Off for none", c.Immediate))
	}
	if c.Delayed < Off {
		errs = append(errs, fmt.Errorf("recoverability: Delayed is %d: use Off for none", c.Delayed))
	}
	if c.TimeIncrease < 0 {
		errs = append(errs, fmt.Errorf("recoverability: TimeIncrease is negative: %v", c.TimeIncrease))
	}
	return errors.Join(errs...)
}

// Decide is the default policy; it does not call c.Policy. An [Unrecoverable] error
// goes to the error queue; one with [RetryAfter] is retried after that time, while
// Delayed allows. Otherwise the message is retried at once while Immediate allows; then after
// TimeIncrease times the number of the cycle, while Delayed allows and no more than
// 24 hours have passed since it first failed; then it goes to the error queue. So
// a message that always fails is tried (Immediate+1)·(Delayed+1) times, 24 by default.
func (c Config) Decide(f Failure) Action {
	c = c.WithDefaults()
	if IsUnrecoverable(f.Err) {
		return MoveToError{Queue: c.ErrorQueue}
	}
	if after, ok := retryAfter(f.Err); ok && c.delayable(f) {
		return Delay{For: after}
	}
	if f.Immediate <= c.Immediate {
		return Retry{}
	}
	if c.delayable(f) {
		return Delay{For: c.delay(f.Delayed)}
	}
	return MoveToError{Queue: c.ErrorQueue}
}

func (c Config) delayable(f Failure) bool {
	return f.Delayed < c.Delayed && f.Now.Sub(f.FirstFailure) <= maxRetryTime
}

// delay is TimeIncrease·(delayed+1), or the longest Duration where that overflows.
func (c Config) delay(delayed int) time.Duration {
	const longest = time.Duration(1<<63 - 1)
	n := time.Duration(max(0, delayed)) + 1
	if c.TimeIncrease > longest/n {
		return longest
	}
	return c.TimeIncrease * n
}

package recoverability

import (
	"cmp"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/header"
)

// Policy decides. It is called by many goroutines at once, must not block, and may
// call [Failure.Decide] for what it does not want to decide itself.
type Policy func(Failure) Action

// None is "no such thing" in the fields of this package's structs, where zero is the default.
const None = -1

// Defaults of [Config].
const (
	DefaultImmediate  = 5
	DefaultDelayed    = 3
	DefaultDelay      = 10 * time.Second
	DefaultErrorQueue = "error"
)

// maxRetryTime is how long after its first failure a message is still retried
// with a delay.
const maxRetryTime = 24 * time.Hour

// Config are the numbers of the default policy. A zero field is its default.
type Config struct {
	// Immediate is how often a message is retried at once, in each cycle: 5 unless
	// set, [None] for never.
	Immediate int
	// Delayed is how many cycles follow the first, each after a delay: 3 unless
	// set, [None] for none.
	Delayed int
	// Delays are the delays before these cycles.
	Delays Delays
	// ErrorQueue is where messages go that were given up: "error" unless set.
	ErrorQueue string
	// Unrecoverable are errors that no other attempt can mend, beside those that
	// [Unrecoverable] has marked.
	Unrecoverable []Matcher
	// Rules say what is different for some types of messages and some errors. The first that
	// fits a failure is taken, the others are not.
	Rules []Rule
	// Quarantine guards against messages that end the process.
	Quarantine Quarantine
	// Memory bounds what the process remembers of failed messages.
	Memory Memory
	// RateLimit slows the endpoint down while what it needs is away. None unless its After is set.
	RateLimit RateLimit
	// Policy decides instead of Decide. Nil is Decide.
	Policy Policy
	// FaultHeaders, when set, changes the headers that a move to an error queue adds, such as
	// to leave out what must not be seen there. It is called for every failure, by many goroutines
	// at once. Where it panics, the headers stay as they were.
	FaultHeaders func(fault *header.Map, f Failure)
}

// Memory bounds what a process remembers of messages that failed and are to be tried again: how often
// that was, where the broker does not count, and the class and beginning of their errors.
// A zero field is its default.
type Memory struct {
	// Messages is how many are remembered: 1,000 unless set. The endpoint remembers 8 for each of
	// Concurrency at the least: a broker that does not count would else retry for ever what is
	// forgotten before it fails again.
	Messages int
	// Bytes is how much text: 1 MiB unless set. Counts are kept beyond it.
	Bytes int
}

// WithDefaults returns c with defaults for its zero fields.
func (c Config) WithDefaults() Config {
	if c.Immediate == 0 {
		c.Immediate = DefaultImmediate
	}
	if c.Delayed == 0 {
		c.Delayed = DefaultDelayed
	}
	c.Delays.Delay = cmp.Or(c.Delays.Delay, DefaultDelay)
	if c.ErrorQueue == "" {
		c.ErrorQueue = DefaultErrorQueue
	}
	c.Quarantine = c.quarantine()
	c.Memory.Messages = cmp.Or(c.Memory.Messages, 1000)
	c.Memory.Bytes = cmp.Or(c.Memory.Bytes, 1<<20)
	return c
}

// WithoutImmediate is c with no immediate retries at all, its rules included.
func (c Config) WithoutImmediate() Config {
	c.Immediate, c.Rules = None, slices.Clone(c.Rules)
	for i := range c.Rules {
		c.Rules[i].Immediate = None
	}
	return c
}

// WithoutDelayed is c with no delayed retries at all, its rules included.
func (c Config) WithoutDelayed() Config {
	c.Delayed, c.Rules = None, slices.Clone(c.Rules)
	for i := range c.Rules {
		c.Rules[i].Delayed = None
	}
	return c
}

// ErrorQueues are the error queues that c names, its rules included, each once. What a Policy
// names is not known.
func (c Config) ErrorQueues() []string {
	queues := []string{c.WithDefaults().ErrorQueue}
	add := func(queue string) {
		if queue != "" && !slices.Contains(queues, queue) {
			queues = append(queues, queue)
		}
	}
	for _, r := range c.Rules {
		add(r.ErrorQueue)
		if move, ok := r.Action.(MoveToError); ok {
			add(move.Queue)
		}
	}
	return queues
}

// Decide is the default policy; it does not call c.Policy. The numbers are those of the first rule that fits. An
// unrecoverable error goes to the error queue. An error with [RetryAfter] is retried after that time, while Delayed
// allows. Any other is retried at once while Immediate allows; then after a delay of Delays, while Delayed allows and
// no more than 24 hours have passed since the message first failed; then it goes to the error queue. So a message that
// always fails is attempted (Immediate+1)·(Delayed+1) times, 24 by default.
func (c Config) Decide(f Failure) Action {
	c, action := c.WithDefaults().ruled(f)
	giveUp := MoveToError{Queue: c.ErrorQueue}
	switch {
	case action == MoveToError{}:
		return giveUp
	case action != nil:
		return action
	case c.unrecoverable(f.Err):
		return giveUp
	}
	if after, ok := retryAfter(f.Err); ok && c.delayable(f) {
		return Delay{For: after}
	}
	if f.Immediate <= c.Immediate {
		return Retry{}
	}
	if c.delayable(f) {
		return Delay{For: c.Delays.delay(f)}
	}
	return giveUp
}

func (c Config) delayable(f Failure) bool {
	return f.Delayed < c.Delayed && f.Now.Sub(f.FirstFailure) <= maxRetryTime
}

func (c Config) unrecoverable(err error) bool {
	return IsUnrecoverable(err) || anyOf(c.Unrecoverable, err)
}

// Package delayeddelivery holds the arithmetic of delays that a broker cannot keep by itself.
// It is pure: it reads no clock and does no I/O.
package delayeddelivery

import (
	"math/bits"
	"strings"
	"time"
)

// Ladder delays messages by queues whose messages expire: one for each power of two, so that
// a few queues make every delay. A message enters at the level of the highest bit of its delay,
// waits there, and falls to the level below, where it waits only if its bit is set, until it
// falls out at the bottom. The delay is written into a routing key, bit by bit, so that topic bindings
// can tell at each level whether to wait:
//
//	level 2 (4 s)   1.*.*.#  wait      0.*.*.#  pass
//	level 1 (2 s)   *.1.*.#  wait      *.0.*.#  pass
//	level 0 (1 s)   *.*.1.#  wait      *.*.0.#  pass
//
// A delay of 5 s to "billing" has the key 1.0.1.billing.
//
// Its methods may be called by many goroutines. The zero value delays nothing.
type Ladder struct {
	// Levels is how many queues there are: at most 62, and so many that Max is a Duration.
	Levels int
	// Step is how long a message waits at level 0, and the resolution of delays.
	Step time.Duration
}

// Max is the longest delay.
func (l Ladder) Max() time.Duration {
	return time.Duration(uint64(1)<<l.Levels-1) * l.Step
}

// Wait is how long a message waits at a level, if it does.
func (l Ladder) Wait(level int) time.Duration { return l.Step << level }

// Steps is a delay in whole steps, rounded up so that nothing comes early: 0 for none, and false
// where the delay is longer than [Ladder.Max].
func (l Ladder) Steps(delay time.Duration) (steps uint64, ok bool) {
	if delay <= 0 {
		return 0, true
	}
	if delay > l.Max() {
		return 0, false
	}
	return (uint64(delay) + uint64(l.Step) - 1) / uint64(l.Step), true
}

// Entry is the level that a message with so many steps, at least 1, enters at: the highest
// at which it waits.
func (l Ladder) Entry(steps uint64) int { return bits.Len64(steps) - 1 }

// Key is the routing key of a message that waits for so many steps and then goes to destination.
func (l Ladder) Key(steps uint64, destination string) string {
	key := make([]byte, 0, 2*l.Levels+len(destination))
	for level := l.Levels - 1; level >= 0; level-- {
		key = append(key, '0'+byte(steps>>level&1), '.')
	}
	return string(key) + literal(destination)
}

// Waits is the binding pattern of the messages that wait at a level, and Passes that of those which
// fall to the level below at once.
func (l Ladder) Waits(level int) string { return l.at(level, "1") }

// Passes is described at [Ladder.Waits].
func (l Ladder) Passes(level int) string { return l.at(level, "0") }

func (l Ladder) at(level int, bit string) string {
	return strings.Repeat("*.", l.Levels-1-level) + bit + ".#"
}

// Arrives is the binding pattern of the messages that go to destination, and to no other: the words
// of the delay are counted, so that a destination is not taken for the end of another's name.
func (l Ladder) Arrives(destination string) string {
	return strings.Repeat("*.", l.Levels) + literal(destination)
}

// Overhead is how many bytes a key has beyond the destination, in which each of *, # and %
// takes three.
func (l Ladder) Overhead() int { return 2 * l.Levels }

var wildcards = strings.NewReplacer("*", "%2A", "#", "%23", "%", "%25")

// literal escapes what a topic binding does not take literally.
func literal(destination string) string { return wildcards.Replace(destination) }

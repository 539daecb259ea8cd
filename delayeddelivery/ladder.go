// Package delayeddelivery holds the arithmetic of delays that a broker cannot keep by itself.
// It reads no clock and does no I/O.
package delayeddelivery

import (
	"math/bits"
	"strings"
	"time"
)

// Ladder delays messages by queues whose messages expire, one for each power of two. A message
// enters at the level of the highest bit of its delay, waits there, and falls to the next lower
// level. It waits at a level if that bit of its delay is set. Below level 0 it is sent to its
// destination. The routing key contains the delay, bit by bit, so that topic bindings select the
// messages that wait at a level:
//
//	level 2 (4 s)   1.*.*.#  wait      0.*.*.#  pass
//	level 1 (2 s)   *.1.*.#  wait      *.0.*.#  pass
//	level 0 (1 s)   *.*.1.#  wait      *.*.0.#  pass
//
// A delay of 5 s to "billing" has the key 1.0.1.billing.
//
// It is safe for concurrent use. The zero value delays nothing.
type Ladder struct {
	// Levels is the number of queues: at most 62, and few enough for Max to be a Duration.
	Levels int
	// Step is the wait at level 0, and the resolution of delays.
	Step time.Duration
}

// Max returns the longest delay.
func (l Ladder) Max() time.Duration {
	return time.Duration(uint64(1)<<l.Levels-1) * l.Step
}

// Wait returns the wait at a level.
func (l Ladder) Wait(level int) time.Duration { return l.Step << level }

// Steps returns a delay in whole steps, rounded up so that no message is early: 0 for none, and
// false if the delay is longer than [Ladder.Max].
func (l Ladder) Steps(delay time.Duration) (steps uint64, ok bool) {
	if delay <= 0 {
		return 0, true
	}
	if delay > l.Max() {
		return 0, false
	}
	return (uint64(delay) + uint64(l.Step) - 1) / uint64(l.Step), true
}

// Entry returns the level at which a message with so many steps, at least 1, enters: the highest at
// which it waits.
func (l Ladder) Entry(steps uint64) int { return bits.Len64(steps) - 1 }

// Key returns the routing key of a message that waits for so many steps and is then sent to
// destination.
func (l Ladder) Key(steps uint64, destination string) string {
	key := make([]byte, 0, 2*l.Levels+len(destination))
	for level := l.Levels - 1; level >= 0; level-- {
		key = append(key, '0'+byte(steps>>level&1), '.')
	}
	return string(key) + literal(destination)
}

// Waits returns the binding pattern of the messages that wait at a level.
func (l Ladder) Waits(level int) string { return l.at(level, "1") }

// Passes returns the binding pattern of the messages that fall to the next lower level at once.
func (l Ladder) Passes(level int) string { return l.at(level, "0") }

func (l Ladder) at(level int, bit string) string {
	return strings.Repeat("*.", l.Levels-1-level) + bit + ".#"
}

// Arrives returns the binding pattern of the messages to destination and to no other: it counts the
// words of the delay, so that a destination is not mistaken for the end of another name.
func (l Ladder) Arrives(destination string) string {
	return strings.Repeat("*.", l.Levels) + literal(destination)
}

// Overhead returns the number of bytes that a key has beyond the destination, in which each of *, #
// and % takes three.
func (l Ladder) Overhead() int { return 2 * l.Levels }

var wildcards = strings.NewReplacer("*", "%2A", "#", "%23", "%", "%25")

// literal escapes the characters that a topic binding does not match literally.
func literal(destination string) string { return wildcards.Replace(destination) }

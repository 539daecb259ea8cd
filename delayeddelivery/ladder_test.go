package delayeddelivery_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/delayeddelivery"
)

// broker is what a topic exchange at each level does with a key: it waits, or passes.
type broker struct {
	ladder       delayeddelivery.Ladder
	destinations []string
}

// carry takes a message down the ladder from the level it enters at. It returns how long it waited
// and which destinations it came out to.
func (b broker) carry(t *testing.T, steps uint64, destination string) (waited time.Duration, out []string) {
	t.Helper()
	key := b.ladder.Key(steps, destination)
	for level := b.ladder.Entry(steps); level >= 0; level-- {
		waits, passes := matches(b.ladder.Waits(level), key), matches(b.ladder.Passes(level), key)
		if waits == passes {
			t.Fatalf("level %d: key %s waits: %v, passes: %v: want one of them", level, key, waits, passes)
		}
		if waits {
			waited += b.ladder.Wait(level)
		}
	}
	for _, d := range b.destinations {
		if matches(b.ladder.Arrives(d), key) {
			out = append(out, d)
		}
	}
	return waited, out
}

// matches is how AMQP topic exchanges match: * is one word, # any number of them.
func matches(pattern, key string) bool {
	return match(strings.Split(pattern, "."), strings.Split(key, "."))
}

func match(pattern, key []string) bool {
	switch {
	case len(pattern) == 0:
		return len(key) == 0
	case pattern[0] == "#":
		return match(pattern[1:], key) || len(key) > 0 && match(pattern, key[1:])
	case len(key) == 0:
		return false
	}
	return (pattern[0] == "*" || pattern[0] == key[0]) && match(pattern[1:], key[1:])
}

var names = []string{"billing", "a.billing", "a.b.billing", "*", "#", "a.#", "a.*.billing", "100%", "%2A", "0.billing", "1", "Ü.日本", "..", "."}

// A message waits exactly its steps, and reaches its destination only.
func TestAMessageWaitsExactlyItsSteps(t *testing.T) {
	ladder := delayeddelivery.Ladder{Levels: 28, Step: time.Second}
	b := broker{ladder, names}
	longest, _ := ladder.Steps(ladder.Max())
	for i := range 20_000 {
		steps := []uint64{1, 2, 3, longest - 1, longest}[i%5]
		if i >= 100 {
			steps = 1 + rand.Uint64N(1<<rand.IntN(28))
		}
		destination := names[i%len(names)]
		waited, out := b.carry(t, steps, destination)
		if want := time.Duration(steps) * time.Second; waited != want {
			t.Fatalf("%d steps: waited %v, want %v", steps, waited, want)
		}
		if len(out) != 1 || out[0] != destination {
			t.Fatalf("%d steps to %q came out to %q", steps, destination, out)
		}
	}
}

// The steps are never less than the delay, and exceed the delay by less than one step.
func TestStepsCoverTheDelay(t *testing.T) {
	for _, ladder := range []delayeddelivery.Ladder{{Levels: 28, Step: time.Second}, {Levels: 1, Step: time.Minute}, {Levels: 10, Step: time.Millisecond}} {
		for range 10_000 {
			delay := 1 + rand.N(ladder.Max())
			steps, ok := ladder.Steps(delay)
			if kept := time.Duration(steps) * ladder.Step; !ok || kept < delay || kept-delay >= ladder.Step {
				t.Fatalf("%+v: a delay of %v is %d steps (%v)", ladder, delay, steps, ok)
			}
		}
	}
}

func TestTheEndsOfALadder(t *testing.T) {
	ladder := delayeddelivery.Ladder{Levels: 28, Step: time.Second}
	if got, want := ladder.Max(), (1<<28-1)*time.Second; got != want {
		t.Errorf("the longest delay is %v, want %v", got, want)
	}
	for _, test := range []struct {
		delay time.Duration
		steps uint64
		ok    bool
	}{
		{-time.Second, 0, true},
		{0, 0, true},
		{1, 1, true},
		{time.Second, 1, true},
		{time.Second + 1, 2, true},
		{ladder.Max(), 1<<28 - 1, true},
		{ladder.Max() + 1, 0, false},
	} {
		if steps, ok := ladder.Steps(test.delay); steps != test.steps || ok != test.ok {
			t.Errorf("Steps(%v) is %d, %v; want %d, %v", test.delay, steps, ok, test.steps, test.ok)
		}
	}
	if _, ok := (delayeddelivery.Ladder{}).Steps(1); ok {
		t.Error("a ladder without levels takes a delay")
	}
}

func TestAKeyIsItsDestinationAndTheOverhead(t *testing.T) {
	ladder := delayeddelivery.Ladder{Levels: 28, Step: time.Second}
	if got, want := len(ladder.Key(12345, "billing")), ladder.Overhead()+len("billing"); got != want {
		t.Errorf("the key has %d bytes, want %d", got, want)
	}
}

func ExampleLadder() {
	ladder := delayeddelivery.Ladder{Levels: 3, Step: time.Second}
	steps, _ := ladder.Steps(4500 * time.Millisecond)
	fmt.Println(ladder.Key(steps, "billing"))
	fmt.Println("enters at level", ladder.Entry(steps))
	fmt.Println("level 2 waits:", ladder.Waits(2), "passes:", ladder.Passes(2))
	fmt.Println("arrives:", ladder.Arrives("billing"))
	// Output:
	// 1.0.1.billing
	// enters at level 2
	// level 2 waits: 1.# passes: 0.#
	// arrives: *.*.*.billing
}

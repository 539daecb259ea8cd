package delayeddelivery_test

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/delayeddelivery"
)

const (
	quarter = 15 * time.Minute
	// window is how long the delay queue refuses an id that it has seen.
	window = 5 * time.Minute
)

var chain = delayeddelivery.DelayChain{Longest: quarter, Step: time.Second}

// waiting is a message in the delay queue.
type waiting struct {
	id      string
	sent    time.Time
	visible time.Time
	due     time.Time
}

// byTime is a heap of waiting messages, the next to be visible first.
type byTime []*waiting

func (b byTime) Len() int           { return len(b) }
func (b byTime) Less(i, j int) bool { return b[i].visible.Before(b[j].visible) }
func (b byTime) Swap(i, j int)      { b[i], b[j] = b[j], b[i] }
func (b *byTime) Push(x any)        { *b = append(*b, x.(*waiting)) }
func (b *byTime) Pop() any {
	last := (*b)[len(*b)-1]
	*b = (*b)[:len(*b)-1]
	return last
}

// queue is the delay queue of a broker. arrived has the times of arrival by deferral.
type queue struct {
	waits   byTime
	seen    map[string]time.Time
	memory  delayeddelivery.Memory
	arrived map[string][]time.Time
	// twice returns the time after which a message that was sent on is delivered again; 0: it is
	// not.
	twice func() time.Duration
}

func newQueue() *queue {
	return &queue{
		seen: map[string]time.Time{}, arrived: map[string][]time.Time{},
		memory: delayeddelivery.Memory{Size: 1000},
		twice:  func() time.Duration { return 0 },
	}
}

func (q *queue) send(hop delayeddelivery.Hop, now, due time.Time) {
	last, known := q.seen[hop.ID()]
	if known && now.Sub(last) < window {
		return
	}
	q.seen[hop.ID()] = now
	heap.Push(&q.waits, &waiting{hop.ID(), now, now.Add(quarter), due})
}

// run delivers the waiting messages until there are none. Each takes up to latency to be handled.
func (q *queue) run(latency time.Duration) {
	for len(q.waits) > 0 {
		m := heap.Pop(&q.waits).(*waiting)
		now := m.visible.Add(rand.N(latency))
		hop := delayeddelivery.HopOf(m.id, m.sent)
		if q.memory.Has(hop) {
			continue
		}
		wait, again := chain.Next(m.due.Sub(now))
		if again {
			q.send(hop.Next(), now, m.due)
		} else {
			q.arrived[hop.Group()] = append(q.arrived[hop.Group()], now.Add(wait))
		}
		if again := q.twice(); again > 0 {
			m.visible = now.Add(again)
			heap.Push(&q.waits, m)
		}
		q.memory.Add(hop)
	}
}

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func TestWhatHopsArrivesOnceAndInTime(t *testing.T) {
	const latency = 5 * time.Second
	q := newQueue()
	due := map[string]time.Time{}
	for i := range 2000 {
		delay := quarter + 1 + rand.N(time.Duration(1)<<rand.IntN(52))
		hop := delayeddelivery.Hop{Message: fmt.Sprint("m", i%7), Deferral: fmt.Sprint(i), Number: 1}
		due[hop.Group()] = epoch.Add(delay)
		q.send(hop, epoch, epoch.Add(delay))
	}
	q.run(latency)
	for group, want := range due {
		got := q.arrived[group]
		if len(got) != 1 {
			t.Fatalf("%s arrived %d times, want once", group, len(got))
		}
		// The last hop may end just when it is due, and be late by what it takes to be handled.
		if late := got[0].Sub(want); late < 0 || late >= time.Second+latency {
			t.Fatalf("%s, due after %v, is %v late", group, want.Sub(epoch), late)
		}
	}
}

// A message that was sent on and comes again was not removed: the request failed. Whether that is
// seconds later, when the queue recognizes it, or hours, when only the memory does, it goes on
// once.
func TestWhatComesAgainGoesOnOnce(t *testing.T) {
	for _, again := range []time.Duration{time.Second, 30 * time.Second, window - time.Second, window + time.Second, time.Hour, 72 * time.Hour} {
		t.Run(again.String(), func(t *testing.T) {
			q := newQueue()
			q.twice = func() time.Duration { return again * time.Duration(rand.IntN(2)) }
			for i := range 20 {
				q.send(delayeddelivery.Hop{Message: "m", Deferral: fmt.Sprint(i), Number: 1}, epoch, epoch.Add(24*time.Hour))
			}
			q.run(time.Second)
			for group, at := range q.arrived {
				if len(at) != 1 {
					t.Errorf("%s arrived %d times", group, len(at))
				}
			}
			if len(q.arrived) != 20 {
				t.Errorf("%d of 20 arrived", len(q.arrived))
			}
		})
	}
}

// Without a memory, as after a crash, what comes again within the window goes on once, and later at
// least once.
func TestWhatComesAgainAfterACrashIsNotLost(t *testing.T) {
	for _, again := range []time.Duration{time.Minute, time.Hour} {
		q := newQueue()
		q.memory.Size = 0
		first := true
		q.twice = func() time.Duration {
			defer func() { first = false }()
			if first {
				return again
			}
			return 0
		}
		q.send(delayeddelivery.Hop{Message: "m", Deferral: "1", Number: 1}, epoch, epoch.Add(24*time.Hour))
		q.run(time.Second)
		for group, at := range q.arrived {
			if again < window && len(at) != 1 {
				t.Errorf("after %v: %s arrived %d times, want once", again, group, len(at))
			}
		}
		if len(q.arrived) == 0 {
			t.Errorf("after %v: nothing arrived", again)
		}
	}
}

// A message that is deferred again, within minutes, is not taken for the first.
func TestEachDeferralOfAMessageArrives(t *testing.T) {
	q := newQueue()
	for i := range 10 {
		now := epoch.Add(time.Duration(i) * time.Second)
		q.send(delayeddelivery.Hop{Message: "m", Deferral: fmt.Sprint(i), Number: 1}, now, now.Add(time.Hour))
	}
	q.run(time.Second)
	if len(q.arrived) != 10 {
		t.Errorf("%d of 10 deferrals arrived", len(q.arrived))
	}
}

// The delay queue knows messages of others by the message's own id: two deferrals of one, an hour
// apart, are two.
func TestMessagesOfOthersAreToldApartByWhenTheyWereSent(t *testing.T) {
	const id = "f3b1c1f4-6f0a-4d0e-9a3b-b0a5008f6b2d"
	first, second := delayeddelivery.HopOf(id, epoch), delayeddelivery.HopOf(id, epoch.Add(time.Hour))
	if first.ID() == second.ID() || first.Next().ID() == second.Next().ID() {
		t.Errorf("two deferrals have one id: %s", first.ID())
	}
	if again := delayeddelivery.HopOf(id, epoch); again != first {
		t.Errorf("the hop of one message is %+v, and later %+v", first, again)
	}
}

func TestAHopIsReadAsItWasWritten(t *testing.T) {
	for range 10_000 {
		hop := delayeddelivery.Hop{Message: randomID(), Deferral: fmt.Sprint(rand.Int64()), Number: 1 + rand.IntN(1<<20)}
		id := hop.ID()
		if len(id) > 128 {
			t.Fatalf("%q has %d characters", id, len(id))
		}
		if at := strings.IndexFunc(id, func(r rune) bool { return r <= ' ' || r >= 0x7f }); at >= 0 {
			t.Fatalf("%q has a character that ids must not have", id)
		}
		got := delayeddelivery.HopOf(id, epoch)
		if got.ID() != id || got.Group() != hop.Group() || got.Next().ID() != hop.Next().ID() || got.Number != hop.Number {
			t.Fatalf("%q is read as %+v", id, got)
		}
	}
}

// randomID is a message's id as users may choose it.
func randomID() string {
	const letters = "abc.019-_:/ é日\n\x00"
	runes := []rune(letters)
	id := make([]rune, 1+rand.IntN(150))
	for i := range id {
		id[i] = runes[rand.IntN(len(runes)>>rand.IntN(2))]
	}
	return string(id)
}

func FuzzHopOf(f *testing.F) {
	for _, id := range []string{"", "holdfast.", "holdfast.m.1.1", "holdfast...", "holdfast.a.b.c.0", "holdfast.a.b.-1", "x"} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		hop := delayeddelivery.HopOf(id, epoch)
		if hop.Number < 1 {
			t.Errorf("%q is hop %d", id, hop.Number)
		}
		if hop.Next().ID() == hop.ID() {
			t.Errorf("%q has the id of its next hop", id)
		}
	})
}

func TestTheEndsOfAChain(t *testing.T) {
	for _, test := range []struct {
		left, wait time.Duration
		hop        bool
	}{
		{-time.Hour, 0, false},
		{0, 0, false},
		{1, time.Second, false},
		{quarter, quarter, false},
		{quarter - 1, quarter, false},
		{quarter + 1, quarter + time.Second, true},
		{365 * 24 * time.Hour, 365 * 24 * time.Hour, true},
		{math.MaxInt64, (math.MaxInt64 / time.Second) * time.Second, true},
	} {
		if wait, hop := chain.Next(test.left); wait != test.wait || hop != test.hop {
			t.Errorf("Next(%v) is %v, %v; want %v, %v", test.left, wait, hop, test.wait, test.hop)
		}
	}
}

func TestAMemoryKeepsTheLastDeferrals(t *testing.T) {
	memory := delayeddelivery.Memory{Size: 3}
	hop := func(deferral, number int) delayeddelivery.Hop {
		return delayeddelivery.Hop{Message: "m", Deferral: fmt.Sprint(deferral), Number: number}
	}
	for n := range 5 {
		memory.Add(hop(n, 1))
		memory.Add(hop(2, n+1)) // which keeps it
	}
	memory.Add(hop(2, 3))
	for n, want := range []bool{false, false, true, true, true} {
		if got := memory.Has(hop(n, 1)); got != want {
			t.Errorf("deferral %d is remembered: %v, want %v", n, got, want)
		}
	}
	for number, want := range map[int]bool{1: true, 5: true, 6: false} {
		if got := memory.Has(hop(2, number)); got != want {
			t.Errorf("hop %d was sent on: %v, want %v", number, got, want)
		}
	}
}

func TestTheZeroValueDelaysNothing(t *testing.T) {
	if wait, hop := (delayeddelivery.DelayChain{}).Next(time.Hour); wait != 0 || hop {
		t.Errorf("Next(1h) = %v, %v; want 0, false", wait, hop)
	}
}

func ExampleDelayChain() {
	chain := delayeddelivery.DelayChain{Longest: 15 * time.Minute, Step: time.Second}
	for left := 40 * time.Minute; ; left -= 15 * time.Minute {
		wait, hop := chain.Next(left)
		if !hop {
			fmt.Println("to its destination in", wait)
			break
		}
		fmt.Println("hop, with", wait, "left")
	}
	// Output:
	// hop, with 40m0s left
	// hop, with 25m0s left
	// to its destination in 10m0s
}

package rabbitmq

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// ledger is a broker's view of a channel: it has the unacknowledged tags, and refuses requests for
// which RabbitMQ would close the channel.
type ledger struct {
	t       *testing.T
	unacked map[uint64]bool
	frames  []string
}

func (l *ledger) Ack(tag uint64, multiple bool) error {
	l.frames = append(l.frames, fmt.Sprint("ack ", tag, " ", multiple))
	if !l.unacked[tag] {
		l.t.Errorf("acknowledged %d, which is not out", tag)
	}
	for out := range l.unacked {
		if out == tag || multiple && out < tag {
			delete(l.unacked, out)
		}
	}
	return nil
}

func (l *ledger) Nack(tag uint64, _, _ bool) error { return l.Reject(tag, true) }

func (l *ledger) Reject(tag uint64, _ bool) error {
	if !l.unacked[tag] {
		l.t.Errorf("rejected %d, which is not out", tag)
	}
	delete(l.unacked, tag)
	return nil
}

// longest is how long an acknowledgement may wait.
const longest = lateAck + 2*ackDelay

// newAcks returns acks with the unsettled deliveries 1 to n.
func newAcks(t *testing.T, n, window int) (*acks, *ledger, []*delivery) {
	l := &ledger{t: t, unacked: make(map[uint64]bool)}
	a := &acks{settler: settler{ch: l}, timer: time.NewTimer(time.Hour), window: window}
	ds := make([]*delivery, n)
	for i := range ds {
		ds[i] = &delivery{tag: uint64(i + 1)}
		l.unacked[ds[i].tag] = true
		a.add(ds[i])
	}
	return a, l, ds
}

func (a *acks) done(t *testing.T, d *delivery) {
	t.Helper()
	a.remove(d)
	if err := a.complete(d, time.Now()); err != nil {
		t.Fatal(err)
	}
}

// elapse lets the timer run as a channel does.
func (a *acks) elapse(t *testing.T, d time.Duration) {
	t.Helper()
	for end := time.After(d); ; {
		select {
		case now := <-a.timer.C:
			if err := a.due(now); err != nil {
				t.Fatal(err)
			}
		case <-end:
			return
		}
	}
}

func TestCompletionsInOrderAreOneAcknowledgement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, l, ds := newAcks(t, 5, 100)
		for _, d := range ds {
			a.done(t, d)
		}
		if len(l.frames) > 0 {
			t.Errorf("left at once: %v", l.frames)
		}
		a.elapse(t, 2*ackDelay)
		if diff := cmp.Diff([]string{"ack 5 true"}, l.frames); diff != "" {
			t.Errorf("frames (-want +got):\n%s", diff)
		}
	})
}

func TestAQuarterOfTheWindowIsAcknowledgedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, l, ds := newAcks(t, 12, 40)
		for _, d := range ds {
			a.done(t, d)
		}
		if diff := cmp.Diff([]string{"ack 10 true"}, l.frames); diff != "" {
			t.Errorf("frames (-want +got):\n%s", diff)
		}
	})
}

func TestAQuarterThatWaitsForAnOlderOneStaysPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, l, ds := newAcks(t, 30, 40)
		for _, d := range ds[1:30] {
			a.done(t, d)
		}
		if len(l.frames) > 0 {
			t.Errorf("left though the oldest is open: %v", l.frames)
		}
		a.done(t, ds[0])
		if diff := cmp.Diff([]string{"ack 30 true"}, l.frames); diff != "" {
			t.Errorf("frames (-want +got):\n%s", diff)
		}
	})
}

// Acknowledgements that fill the window are sent singly.
func TestAcksThatFillTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, l, ds := newAcks(t, 40, 40)
		var want []string
		for _, d := range ds[1:31] {
			a.done(t, d)
			want = append(want, fmt.Sprint("ack ", d.tag, " false"))
		}
		if diff := cmp.Diff(want, l.frames); diff != "" {
			t.Errorf("frames with three quarters of the window done (-want +got):\n%s", diff)
		}
	})
}

func TestASmallWindowIsAcknowledgedOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, l, ds := newAcks(t, 2, 3)
		a.done(t, ds[0])
		a.done(t, ds[1])
		if diff := cmp.Diff([]string{"ack 1 false", "ack 2 false"}, l.frames); diff != "" {
			t.Errorf("frames (-want +got):\n%s", diff)
		}
	})
}

// Deliveries after an unsettled delivery are acknowledged singly.
func TestNoMultipleAckBeyondAnOpenOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, l, ds := newAcks(t, 6, 100)
		for _, i := range []int{5, 1, 0, 4} { // 3 and 4 are still open
			a.done(t, ds[i])
		}
		a.elapse(t, longest)
		if diff := cmp.Diff([]string{"ack 2 true", "ack 6 false", "ack 5 false"}, l.frames); diff != "" {
			t.Errorf("frames (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(map[uint64]bool{3: true, 4: true}, l.unacked); diff != "" {
			t.Errorf("still out (-want +got):\n%s", diff)
		}
	})
}

// With several consumers on a channel a tag may arrive late: it must not be acknowledged with
// others before.
func TestAMissingTagIsNotSweptAlong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, l, _ := newAcks(t, 2, 100)
		three, four := &delivery{tag: 3}, &delivery{tag: 4}
		l.unacked[3], l.unacked[4] = true, true
		a.remove(a.oldest)
		a.remove(a.oldest)
		_, _ = l.Reject(1, true), l.Reject(2, true)
		a.add(four)
		a.done(t, four)
		a.elapse(t, longest)
		if !l.unacked[3] {
			t.Fatal("3 was acknowledged before it was seen")
		}
		a.add(three)
		a.done(t, three)
		a.elapse(t, longest)
		if len(l.unacked) > 0 {
			t.Errorf("never acknowledged: %v", l.unacked)
		}
	})
}

// In any order of settlements, each delivery is acknowledged exactly once, and in time.
func TestEachDeliveryIsAckedOnce(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			a, l, _ := newAcks(t, 0, 1+rnd.IntN(60))
			var open []*delivery
			completed := make(map[uint64]time.Time)
			for tag := uint64(1); tag <= 300 || len(open) > 0; {
				if tag <= 300 && (len(open) == 0 || rnd.IntN(2) == 0) {
					d := &delivery{tag: tag}
					l.unacked[tag] = true
					a.add(d)
					open = append(open, d)
					tag++
					continue
				}
				i := rnd.IntN(len(open))
				d := open[i]
				open = append(open[:i], open[i+1:]...)
				if rnd.IntN(10) == 0 {
					a.remove(d)
					_ = a.ch.Reject(d.tag, true)
				} else {
					completed[d.tag] = time.Now()
					a.done(t, d)
				}
				a.elapse(t, time.Duration(rnd.IntN(800))*time.Microsecond)
				for tag, at := range completed {
					if l.unacked[tag] && time.Since(at) > longest {
						t.Fatalf("seed %d: the acknowledgement of %d waits for %v", seed, tag, time.Since(at))
					}
				}
			}
			a.elapse(t, longest)
			if len(l.unacked) > 0 {
				t.Errorf("seed %d: never acknowledged: %v", seed, l.unacked)
			}
		})
	}
}

// No acknowledgement waits for a held delivery, which stays unsettled for long.
func TestAcksDoNotWaitForHeldDeliveries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, l, ds := newAcks(t, 3, 100)
		ds[0].held = true
		a.done(t, ds[2])
		a.elapse(t, 2*ackDelay)
		if diff := cmp.Diff([]string{"ack 3 false"}, l.frames); diff != "" {
			t.Errorf("frames (-want +got):\n%s", diff)
		}
	})
}

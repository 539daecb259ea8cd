package rabbitmq

import (
	"math"
	"testing"
	"time"
)

// sharing returns a prefetch with consumers of the given shares, of which open deliveries are
// unsettled.
func sharing(open int, shares ...int) *prefetch {
	p := &prefetch{grace: 3 * time.Minute}
	for _, share := range shares {
		c := &consumer{share: share, open: min(open, share)}
		open -= c.open
		p.consumers = append(p.consumers, c)
	}
	return p
}

// targetOf returns the target for a window.
func (p *prefetch) targetOf(window int, maxHold time.Duration, now time.Time) int {
	return p.plan(window, false, maxHold, now).target
}

func TestWhenConsumersAreCancelledForASmallerWindow(t *testing.T) {
	const all = 15
	for _, tt := range []struct {
		name  string
		open  int
		after time.Duration
		want  bool
	}{
		{"at once", all, 0, false},
		{"soon, with all delivered", all, narrowFor, true},
		{"soon, with nothing delivered", 0, narrowFor, true},
		{"soon, with some on their way", 7, narrowFor, false},
		{"later, with some on their way", 7, unsafeAfter, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, now := sharing(tt.open, 10, 5), time.Now()
			plan := func(window int, at time.Time) plan { return p.plan(window, false, 0, at) }
			for range 3 { // each time anew
				if got := plan(10, now); got.cancel != nil || !got.again {
					t.Fatalf("%d consumers are to be cancelled at once, again is %t", len(got.cancel), got.again)
				}
				now = now.Add(narrowFor / 2)
				if got := plan(all, now); got.cancel != nil || got.again {
					t.Fatalf("%d consumers are to be cancelled for nothing, again is %t", len(got.cancel), got.again)
				}
				now = now.Add(time.Hour)
			}
			plan(10, now)
			got := plan(10, now.Add(tt.after))
			if (len(got.cancel) == 2) != tt.want || got.again == tt.want {
				t.Errorf("%d consumers are to be cancelled, again is %t", len(got.cancel), got.again)
			}
		})
	}
}

func TestTheLastPlanCancelsAllAndStartsNone(t *testing.T) {
	p, now := sharing(7, 10, 5), time.Now()
	if got := p.plan(15, true, 0, now); got.target != 0 || len(got.cancel) != 2 || got.again {
		t.Errorf("the last plan is %+v, want two consumers cancelled", got)
	}
	if got := p.plan(15, false, 0, now); got.target != 0 || p.next(got.target, "orders") != nil {
		t.Errorf("a later plan is %+v, want none to start", got)
	}
	for _, c := range p.leaving {
		if p.idle() || !c.cancelled {
			t.Errorf("idle is %t before all consumers have ended, cancelled is %t", p.idle(), c.cancelled)
		}
		c.drained = true
	}
	if !p.idle() {
		t.Error("the prefetch is not idle after all consumers have ended")
	}
}

func TestAWindowBeyondWhatConsumersTakeLeavesThemAlone(t *testing.T) {
	var full [maxConsumers]int
	for i := range full {
		full[i] = math.MaxUint16
	}
	p, now := sharing(0, full[:]...), time.Now()
	first := p.targetOf(2*maxTarget, 0, now)
	p.size = 2 * maxTarget
	got := p.plan(2*maxTarget, false, 0, now)
	if max(first, got.target) > maxTarget || got.cancel != nil || p.next(maxTarget, "orders") != nil {
		t.Errorf("consumers change for a target of %d: %d are cancelled", got.target, len(got.cancel))
	}
}

// Old deliveries take less of the target than the part that may be missing when it grows: otherwise
// free handlers would wait for slow ones.
func TestTheLastOldDeliveryHoldsUpNoOther(t *testing.T) {
	const window, held = 1200, 200
	for left := held; left > 0; left-- {
		p, now := sharing(0), time.Now()
		target := p.targetOf(window, 0, now)
		p.leaving = []*consumer{{drained: true, open: held}}
		for open := held; open >= left; open-- {
			p.leaving[0].open = open
			p.next(target, "orders")
		}
		if unsettled := left + p.shares(); !p.take(0, true, unsettled, window, now) {
			t.Fatalf("with %d unsettled, %d of them old, nothing more is asked for", unsettled, left)
		}
	}
}

func TestWhenThePrefetchTargetGrows(t *testing.T) {
	type take struct {
		after time.Duration
		n     int
	}
	const window = 384
	now := time.Now()
	for _, tt := range []struct {
		name  string
		held  int
		taken []take
		want  int
	}{
		{name: "the queue is empty", held: 3, want: 96},
		{name: "part of it may be on its way", held: 71, want: 96},
		{name: "most is held", held: 72, want: 192},
		{name: "used up fast, over a long way to the broker", held: 10, taken: []take{{0, 90}, {time.Second, 6}}, want: 192},
		{name: "used up slowly", held: 10, taken: []take{{0, 90}, {time.Second + 1, 90}}, want: 96},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, at := &prefetch{}, now
			if got := p.targetOf(window, 0, now); got != 96 {
				t.Errorf("at first %d, want 96", got)
			}
			for _, take := range tt.taken {
				at = now.Add(take.after)
				p.take(take.n, false, window, window, at)
			}
			if p.take(0, true, tt.held, window, at) != (tt.want > 96) {
				t.Error("take reports the wrong need")
			}
			for range 2 {
				if got := p.targetOf(window, 0, at); got != tt.want {
					t.Errorf("then %d, want %d", got, tt.want)
				}
			}
		})
	}
}

func TestThePrefetchTargetFallsWhenItIsNotNeeded(t *testing.T) {
	const window = 120
	p, now := &prefetch{}, time.Now()
	for p.targetOf(window, 0, now) < window { // handlers are fast
		p.take(p.size, true, 0, window, now)
		now = now.Add(10 * time.Millisecond)
	}
	for range 10 { // and go on so, without running short
		now = now.Add(calm / 2)
		p.take(fullTarget, false, window, window, now)
		if got := p.targetOf(window, 0, now); got != window {
			t.Fatalf("%d while it is needed, want %d", got, window)
		}
	}
	if got := p.targetOf(window, 0, now.Add(calm-1)); got != window {
		t.Errorf("%d too soon", got)
	}
	for range 10 { // slow ones need no more than the first
		now = now.Add(calm / 10)
		p.take(fullTarget/4, false, window, window, now)
	}
	if got := p.targetOf(window, 0, now); got != fullTarget {
		t.Errorf("%d in the end, want %d", got, fullTarget)
	}
}

func TestThePrefetchTargetIsHandledInTime(t *testing.T) {
	const window, maxHold = 24, time.Minute
	now := time.Now()
	for _, tt := range []struct {
		handling time.Duration
		others   int
		want     int
	}{
		{time.Millisecond, 1, window},
		{time.Second, 1, window},
		{2 * time.Second, 1, 16},
		{6 * time.Second, 1, 8},
		{30 * time.Second, 1, 2},
		{time.Hour, 1, 1},
		{6 * time.Second, 9, window},
	} {
		p := &prefetch{}
		p.settle(&consumer{}, tt.handling, tt.others)
		p.settle(&consumer{}, 0, 0) // released without a handler
		if got := p.targetOf(window, maxHold, now); got != tt.want {
			t.Errorf("%v beside %d others: %d, want %d", tt.handling, tt.others, got, tt.want)
		}
		if got := p.targetOf(window, 0, now); got != window {
			t.Errorf("%v beside %d others, held for ever: %d, want %d", tt.handling, tt.others, got, window)
		}
	}
}

func TestALittleMoreIsAskedForAtOnce(t *testing.T) {
	for _, tt := range []struct{ window, want int }{{3, 3}, {24, 24}, {42, 42}, {43, 32}, {128, 32}, {400, 100}} {
		if got := (&prefetch{}).targetOf(tt.window, 0, time.Now()); got != tt.want {
			t.Errorf("of a window of %d: %d, want %d", tt.window, got, tt.want)
		}
	}
}

// Held messages are prefetched for, in powers of two, so that few consumers start; the target is as
// it was.
func TestHeldMessagesAreMadeUpFor(t *testing.T) {
	p, now := sharing(0), time.Now()
	started := 0
	fit := func(held int) (plan plan) {
		p.held = held
		plan = p.plan(384, false, 0, now)
		if c := p.next(plan.total(), "orders"); c != nil {
			started++
		}
		return plan
	}
	first := fit(0).target
	for held := 1; held <= 1000; held++ {
		plan := fit(held)
		if plan.target != first || plan.extra < held || plan.extra > max(leastExtra, 2*held) {
			t.Fatalf("with %d held: target %d and %d beside it, want %d and at least as many as are held", held, plan.target, plan.extra, first)
		}
		if free := p.shares() - held; free < first && len(plan.cancel) == 0 {
			t.Fatalf("with %d held only %d others are prefetched, want %d", held, free, first)
		}
	}
	if started > 10 {
		t.Errorf("%d consumers were started", started)
	}
	for held := 1000; held > 0; held-- {
		if plan := fit(held); plan.extra < held {
			t.Fatalf("with %d held %d are prefetched for them", held, plan.extra)
		}
	}
	if plan := fit(0); plan.extra != 0 {
		t.Errorf("%d are prefetched for none", plan.extra)
	}
}

// A window of one asks for one message, however many are held.
func TestAWindowOfOneWithHeldMessages(t *testing.T) {
	p, now := sharing(0), time.Now()
	p.held = 5
	p.leaving = []*consumer{{drained: true, open: 5}}
	plan := p.plan(1, false, 0, now)
	if c := p.next(plan.total(), "orders"); c == nil || c.share != 1 {
		t.Errorf("the next consumer is %+v, want a share of 1", c)
	}
	if plan := p.plan(0, false, 0, now); plan.total() != 0 {
		t.Errorf("a window of 0 prefetches %d", plan.total())
	}
}

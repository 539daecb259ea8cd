package held

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/internal/histories"
)

var errFull = errors.New("full")

// pass waits for d to pass and for everything to come to rest.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// errorQueue is an error queue with the messages that wait for it.
type errorQueue struct {
	room *Room
	name string

	mu       sync.Mutex // guards the rest
	capacity int        // messages that it accepts yet
	silent   bool       // an answer takes 20 s
	tries    []time.Time
	running  int
	most     int // running at once
	accepted int
	left     int
	begins   int
	ends     []State
}

// enter has a message wait until it is accepted, or until leaves is closed.
func (q *errorQueue) enter(size int64, leaves <-chan struct{}) bool {
	p, begins := q.room.Enter(q.name, size, errFull)
	if p == nil {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if begins {
		q.begins++
	}
	go func() {
		for {
			select {
			case <-leaves:
				q.end(p.Leave(), false)
				return
			case <-p.turn:
			}
			if q.try() {
				q.end(p.Accepted(), true)
				_ = p.Leave()
				return
			}
			p.Refused(errFull)
		}
	}()
	return true
}

func (q *errorQueue) try() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.tries = append(q.tries, time.Now())
	q.running++
	q.most = max(q.most, q.running)
	took := 10 * time.Millisecond
	if q.silent {
		took = 20 * time.Second
	}
	q.mu.Unlock()
	<-time.After(took)
	q.mu.Lock()
	q.running--
	if q.silent || q.capacity <= 0 {
		return false
	}
	q.capacity--
	return true
}

func (q *errorQueue) end(s *State, accepted bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if accepted {
		q.accepted++
	} else {
		q.left++
	}
	if s != nil {
		q.ends = append(q.ends, *s)
	}
}

func (q *errorQueue) set(capacity int, silent bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.capacity, q.silent = capacity, silent
}

// One message is tried at a time, after pauses of 1 s to 30 s, however many wait.
func TestOneProbeAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &errorQueue{room: new(Room), name: "error"}
		begin := time.Now()
		leave := make(chan struct{})
		for range 100 {
			q.enter(1, leave)
		}
		pass(5 * time.Minute)
		var pauses []time.Duration
		last := begin
		for _, at := range q.tries {
			pauses = append(pauses, at.Sub(last).Round(time.Second))
			last = at
		}
		want := []time.Duration{1, 2, 4, 8, 16, 30, 30, 30}
		for i := range want {
			if i >= len(pauses) || pauses[i] != want[i]*time.Second {
				t.Fatalf("pauses %v, want %v s", pauses, want)
			}
		}
		if q.most != 1 {
			t.Errorf("%d tries at once", q.most)
		}
		close(leave)
		synctest.Wait()
		if len(q.ends) != 1 || q.begins != 1 || q.left != 100 || q.ends[0].Accepted != 0 {
			t.Errorf("%d begins, ends %+v, %d left", q.begins, q.ends, q.left)
		}
	})
}

// A queue that accepts messages again is filled soon, also a silent one, and the tries grow with
// the successes.
func TestAQueueThatAcceptsIsFilledSoon(t *testing.T) {
	for _, silent := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			q := &errorQueue{room: new(Room), name: "error"}
			q.set(0, silent)
			for range MaxMessages {
				q.enter(1, nil)
			}
			if q.enter(1, nil) {
				t.Error("the room has place for one more")
			}
			pass(10 * time.Minute)
			n := len(q.tries)
			q.set(MaxMessages, false)
			pass(52 * time.Second)
			if q.accepted != MaxMessages || q.most > maxTries {
				t.Errorf("%d accepted, %d tries at once", q.accepted, q.most)
			}
			if tries := len(q.tries) - n; tries > MaxMessages+1 {
				t.Errorf("%d tries of %d messages", tries, MaxMessages)
			}
			if len(q.ends) != 1 || q.ends[0].Accepted != MaxMessages || q.room.Refusal("error") != nil {
				t.Errorf("ends %+v, refusal %v", q.ends, q.room.Refusal("error"))
			}
		})
	}
}

// A queue with room for a few messages gets these, and few further tries.
func TestALittleRoomIsNotFlooded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &errorQueue{room: new(Room), name: "error"}
		leave := make(chan struct{})
		for range 500 {
			q.enter(1, leave)
		}
		pass(time.Minute)
		before := len(q.tries)
		q.set(3, false)
		pass(time.Minute)
		if refused := len(q.tries) - before - 3; q.accepted != 3 || refused > 10 {
			t.Errorf("%d accepted, %d refused; want 3 and at most 10", q.accepted, refused)
		}
		probes := q.tries[before+3+4:] // after the three successes, four more were tried at once
		for i, want := range []time.Duration{2, 4, 8} {
			if gap := probes[i+1].Sub(probes[i]).Round(time.Second); gap != want*time.Second {
				t.Errorf("pause %d is %v, want %d s", i, gap, want)
			}
		}
		close(leave)
		synctest.Wait()
	})
}

// A queue that is full again gets no further tries: only the tries that have begun end. How many
// have begun depends on the order in which goroutines run.
func TestTheEndOfRoomIsSeenAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &errorQueue{room: new(Room), name: "error"}
		leave := make(chan struct{})
		for range 500 {
			q.enter(1, leave)
		}
		q.set(100, false)
		pass(3 * time.Second)
		if refused := len(q.tries) - 100; q.accepted != 100 || refused > 2*maxTries {
			t.Errorf("%d accepted, %d refused; want 100 and at most %d", q.accepted, refused, 2*maxTries)
		}
		close(leave)
		synctest.Wait()
	})
}

// A refusal takes the tries back that successes had allowed and that have not begun.
func TestARefusalEndsTheTriesToCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := new(Room)
		var places, trying []*Place
		for range 4 * maxTries {
			p, _ := r.Enter("error", 1, errFull)
			places = append(places, p)
		}
		next := func() {
			synctest.Wait()
			for _, p := range places {
				select {
				case <-p.turn:
					trying = append(trying, p)
				default:
				}
			}
		}
		accept := func() {
			_ = trying[0].Accepted()
			trying = trying[1:]
			next()
		}
		pass(time.Second)
		next()
		for len(trying) < maxTries { // two more tries for each success
			accept()
		}
		accept() // a try more is allowed than may run
		if len(trying) != maxTries {
			t.Fatalf("%d tries run, want %d", len(trying), maxTries)
		}
		trying[0].Refused(errFull)
		trying = trying[1:]
		if next(); len(trying) != maxTries-1 {
			t.Errorf("%d tries run after a refusal, want %d", len(trying), maxTries-1)
		}
		for _, p := range places {
			_ = p.Leave()
		}
	})
}

// A message that its queue never accepts, such as a large one, holds up no other.
func TestARefusedMessageHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := new(Room)
		never, _ := r.Enter("error", 1, errFull)
		go func() {
			for range never.turn {
				never.Refused(errFull)
			}
		}()
		for range 3 {
			pass(2 * time.Minute) // the pauses are the longest
			q := &errorQueue{room: r, name: "error"}
			q.set(100, false)
			for range 100 {
				q.enter(1, nil)
			}
			pass(2*mostPause + 10*time.Second)
			if q.accepted != 100 {
				t.Errorf("%d of 100 messages were accepted behind one that is refused", q.accepted)
			}
		}
		_ = never.Leave()
		close(never.turn)
	})
}

// Messages that fail all the time keep no queue in the room that accepts messages again. Another
// refusal is seen.
func TestAQueueThatAcceptsLeavesTheRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := new(Room)
		q := &errorQueue{room: r, name: "error"}
		for range 10 {
			q.enter(1, nil)
		}
		pass(time.Minute)
		q.set(1<<30, false)
		direct := 0
		for range 60_000 { // 1,000 a second, of which each takes 0.1 s
			if refusal := r.Refusal("error"); refusal == nil {
				direct++
			} else if p, _ := r.Follow("error", 1, refusal); p != nil {
				go func() {
					<-p.turn
					<-time.After(100 * time.Millisecond)
					_ = p.Accepted()
				}()
			}
			<-time.After(time.Millisecond)
		}
		pass(time.Minute)
		if all, full := r.States(); len(all) > 0 || full || direct == 0 {
			t.Errorf("%d messages were sent at once; the room has %+v, full %v", direct, all, full)
		}

		const n = 200
		q = &errorQueue{room: r, name: "error"}
		for range n {
			q.enter(1, nil)
		}
		q.set(1<<30, false)
		for q.accepted < recovered {
			if r.Refusal("error") == nil {
				t.Fatalf("a message overtakes others after %d successes", q.accepted)
			}
			pass(5 * time.Millisecond)
		}
		if r.Refusal("error") != nil || q.accepted == n {
			t.Errorf("others wait after %d of %d successes", q.accepted, n)
		}
		refused, _ := r.Enter("error", 1, errFull)
		if r.Refusal("error") == nil {
			t.Error("a refusal is not seen")
		}
		_ = refused.Leave()
		if pass(time.Minute); q.accepted != n {
			t.Errorf("%d of %d accepted", q.accepted, n)
		}
	})
}

// The room is bounded by the number and by the bytes of its messages, for all queues together.
func TestTheRoomIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := new(Room)
		one, two := &errorQueue{room: r, name: "one"}, &errorQueue{room: r, name: "two"}
		leave := make(chan struct{})
		if !one.enter(MaxBytes-5, leave) || !two.enter(5, leave) || two.enter(1, nil) || one.enter(MaxBytes+1, nil) {
			t.Error("the bound of bytes is not kept")
		}
		all, full := r.States()
		if len(all) != 2 || all[0].Queue != "one" || all[0].Messages != 1 || !errors.Is(all[1].Err, errFull) || !full {
			t.Errorf("states %+v, full %v", all, full)
		}
		close(leave)
		synctest.Wait()
		if all, full := r.States(); len(all) != 0 || full || r.messages != 0 || r.bytes != 0 {
			t.Errorf("states %+v, full %v; %d messages of %d bytes", all, full, r.messages, r.bytes)
		}
	})
}

// Whatever happens, no message is forgotten: each is accepted soon after its queue accepts, or
// leaves when it has to. While a queue refuses, the tries are few.
func TestRandomHistories(t *testing.T) {
	histories.Run(t, histories.Count{Short: 300, Test: 2_000, Soak: 100_000}, history)
}

func history(t *testing.T, rnd *rand.Rand) {
	r := new(Room)
	qs := []*errorQueue{{room: r, name: "error"}, {room: r, name: "other"}}
	stop := make(chan struct{})
	entered := map[*errorQueue]int{}
	for range 5 + rnd.IntN(20) {
		q := qs[rnd.IntN(2)]
		switch rnd.IntN(5) {
		case 0:
			q.set(0, false)
		case 1:
			q.set(0, true)
		case 2:
			q.set(rnd.IntN(10), false)
		case 3:
			q.set(1<<30, false)
		default:
			for range 1 + rnd.IntN(100) {
				leaves := (<-chan struct{})(stop)
				if rnd.IntN(3) == 0 { // the lease ends, or the delivery is lost
					own := make(chan struct{})
					time.AfterFunc(time.Duration(rnd.Int64N(int64(5*time.Minute))), func() { close(own) })
					leaves = own
				}
				if q.enter(rnd.Int64N(1<<18), leaves) {
					entered[q]++
				}
			}
		}
		q.mu.Lock()
		refuses, before, running := q.capacity == 0, len(q.tries), q.running
		q.mu.Unlock()
		d := time.Duration(rnd.Int64N(int64(2 * time.Minute)))
		if pass(d); refuses {
			q.mu.Lock()
			if tries := len(q.tries) - before - running; tries > 5+maxTries+int(d/(16*time.Second)) {
				t.Errorf("%d tries within %v at a queue that refuses", tries, d)
			}
			q.mu.Unlock()
		}
	}
	if rnd.IntN(2) == 0 {
		close(stop)
		pass(20 * time.Second) // a try that runs ends first
	} else {
		for _, q := range qs {
			q.set(1<<30, false)
		}
		pass(55 * time.Second)
		for _, q := range qs {
			if waits := entered[q] - q.accepted - q.left; waits > 0 {
				t.Errorf("%d messages still wait for a queue that accepts", waits)
			}
		}
	}
	pass(5 * time.Minute) // the other leases
	for _, q := range qs {
		if q.accepted+q.left != entered[q] || q.begins != len(q.ends) {
			t.Errorf("%s: of %d messages %d were accepted and %d left; %d begins, %d ends",
				q.name, entered[q], q.accepted, q.left, q.begins, len(q.ends))
		}
	}
	if all, full := r.States(); len(all) > 0 || full || r.messages != 0 || r.bytes != 0 {
		t.Errorf("at the end: %s", fmt.Sprint(all, full, r.messages, r.bytes))
	}
}

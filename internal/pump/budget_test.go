package pump

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/holdfast-go/holdfast/transport"
)

const kiB = 1 << 10

// blocking is a Handle that holds its messages until release is called.
type blocking struct {
	started list[*delivery]
	free    chan struct{}
	once    sync.Once
}

func newBlocking() *blocking { return &blocking{free: make(chan struct{})} }

func (b *blocking) handle(_ context.Context, d transport.Delivery, slot *Slot) {
	b.started.add(d.(*delivery))
	<-b.free
	slot.Free()
}

// one releases one message, and waits until all goroutines rest.
func (b *blocking) one() {
	b.free <- struct{}{}
	synctest.Wait()
}

func (b *blocking) release() { b.once.Do(func() { close(b.free) }) }

func repeat(size, n int) []int { return slices.Repeat([]int{size}, n) }

func TestABudgetBoundsWhatAPumpHolds(t *testing.T) {
	for _, test := range []struct {
		name   string
		sizes  []int
		exact  bool
		budget int64
		want   int64 // bytes held while nothing is settled
	}{
		{"the driver counts messages", repeat(100*kiB, 200), false, 1024 * kiB, 1000 * kiB},
		{"the driver counts bytes", repeat(100*kiB, 200), true, 1024 * kiB, 1000 * kiB},
		{"one message is as large as the bound", repeat(1024*kiB, 3), true, 1024 * kiB, 1024 * kiB},
		{"a message above the bound is received alone", repeat(5000*kiB, 3), true, 1024 * kiB, 5000 * kiB},
		{"and also where the driver counts messages", repeat(5000*kiB, 3), false, 1024 * kiB, 5000 * kiB},
		{"small messages are not held up", repeat(1, 200), true, 1024 * kiB, 150}, // 100 in handlers and half as many buffered
	} {
		bubble(t, test.name, func(t *testing.T) {
			r := newReceiver()
			all := r.putSizes(test.sizes...)
			var receiver transport.Receiver = r
			if test.exact {
				receiver = &byteReceiver{receiver: r}
			}
			b := newBlocking()
			budget := NewBudget(test.budget)
			p := start(t, Config{Receiver: receiver, Concurrency: 100, Handle: b.handle, Budget: budget})
			if got := p.Stats().Bytes; got != test.want {
				t.Errorf("%d bytes are held, want %d", got, test.want)
			}
			b.release()
			pass(0)
			if n := len(b.started.all()); n != len(all) {
				t.Errorf("%d of %d messages were handled", n, len(all))
			}
			p.end()
			if n := budget.Claimed(); n != 0 {
				t.Errorf("%d bytes are claimed after the end", n)
			}
		})
	}
}

func TestAReceiveIsBoundedByWhatIsLeft(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		r := &byteReceiver{receiver: newReceiver()}
		r.putSizes(repeat(300*kiB, 20)...)
		b := newBlocking()
		p := start(t, Config{Receiver: r, Concurrency: 20, Handle: b.handle, Budget: NewBudget(1000 * kiB)})
		defer p.end()
		defer b.release()
		if got := p.Stats().Bytes; got != 900*kiB {
			t.Errorf("%d KiB are held, want 900", got/kiB)
		}
		for _, bound := range r.bounds.all() {
			if bound < 1 || bound > 1000*kiB {
				t.Errorf("a Receive was bounded by %d bytes of 1,024,000", bound)
			}
		}
	})
}

func TestPumpsShareABudget(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		budget := NewBudget(1000 * kiB)
		held := func(n int) (*started, *blocking) {
			r := &byteReceiver{receiver: newReceiver()}
			r.putSizes(repeat(100*kiB, n)...)
			b := newBlocking()
			return start(t, Config{Receiver: r, Concurrency: 50, Handle: b.handle, Budget: budget}), b
		}
		first, free := held(50)
		defer first.end()
		defer free.release()
		if got := first.Stats().Bytes; got != 1000*kiB {
			t.Errorf("a pump beside none holds %d KiB, want 1000", got/kiB)
		}
		second, free2 := held(50)
		defer second.end()
		defer free2.release()
		if got := second.Stats().Bytes; got != 100*kiB {
			t.Errorf("a pump beside one that holds all has %d KiB, want one message of 100", got/kiB)
		}
		for range 8 { // the first one may have half from now on, so it asks for no more
			free.one()
		}
		if a, b := first.Stats().Bytes, second.Stats().Bytes; a != 500*kiB || b != 500*kiB {
			t.Errorf("two pumps that both lack room hold %d and %d KiB, want 500 each", a/kiB, b/kiB)
		}
		idle, free3 := held(0)
		defer idle.end()
		defer free3.release()
		if got := budget.Claimed() - 1000*kiB; got > kiB {
			t.Errorf("a pump that waits for messages claims %d bytes where there is no room", got)
		}
	})
}

func TestTheWindowFollowsTheSizeOfMessages(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		r := newReceiver()
		b := newBlocking()
		b.release()
		p := start(t, Config{
			Receiver: r, Concurrency: 50, Limits: transport.Limits{Prefetch: true}, Handle: b.handle, Budget: NewBudget(64 << 20),
		})
		defer p.end()
		last := func() int { return r.windows[len(r.windows)-1] }
		if got := last(); got != 8 {
			t.Errorf("the first window is %d, want 8: as many messages of 8 MiB as fit", got)
		}
		r.putSizes(repeat(1, 10)...)
		pass(0)
		full := last()
		if full < 500 {
			t.Errorf("the window is %d when messages are small, want that of 50 handlers", full)
		}
		r.putSizes(repeat(10<<20, 100)...)
		pass(0)
		if got := last(); got < 3 || got > 12 {
			t.Errorf("the window is %d when messages have 10 MiB, want about 6", got)
		}
		r.putSizes(repeat(1, 1000)...)
		pass(0)
		if got := last(); got != full {
			t.Errorf("the window is %d when messages are small again, want %d", got, full)
		}
	})
}

func TestLostAndReleasedMessagesLeaveTheBudget(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		l := newLeaser()
		l.putSizes(repeat(100*kiB, 20)...)
		l.renew = func(_ context.Context, ds []transport.Delivery) []error {
			return slices.Repeat([]error{transport.ErrLeaseLost}, len(ds))
		}
		b := newBlocking()
		budget := NewBudget(1000 * kiB)
		p := start(t, Config{
			Receiver: l, Concurrency: 2, Handle: b.handle, Budget: budget,
			Limits: transport.Limits{Lease: minuteLease, FreeRelease: true},
		})
		pass(minuteLease)
		b.release()
		p.end()
		if n := budget.Claimed(); n != 0 {
			t.Errorf("%d bytes are claimed after the end", n)
		}
	})
}

func TestAReceiveThatFailedReservesNothing(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		r := newReceiver()
		r.before = func(int) ([]transport.Delivery, error, bool) { return nil, transport.ErrUnreachable, true }
		budget, claimed := NewBudget(1000*kiB), int64(-1)
		p := start(t, Config{
			Receiver: r, Handle: complete(0), Budget: budget,
			OnReceive: func(error) { claimed = budget.Claimed() },
		})
		p.end()
		if claimed != 0 {
			t.Errorf("%d bytes were claimed after a Receive that failed", claimed)
		}
	})
}

const minuteLease = 60_000_000_000

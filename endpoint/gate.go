package endpoint

import (
	"context"
	"slices"
	"sync"

	"github.com/holdfast-go/holdfast/internal/pump"
)

// gate bounds how many messages of a type are handled at once. One that waits gives its slot away
// meanwhile; it is given another by the message that it waited for, so that the endpoint's
// concurrency is kept too.
type gate struct {
	mu      sync.Mutex // guards the rest
	room    int
	waiting []*waiter
}

type waiter struct {
	slot *pump.Slot
	in   chan struct{} // closed when it has been let in
}

// enter waits until one more message may be handled, or ctx ends.
func (g *gate) enter(ctx context.Context, slot *pump.Slot) error {
	w := g.arrive(slot)
	if w == nil {
		return nil
	}
	select {
	case <-w.in:
		return nil
	case <-ctx.Done():
		g.giveUp(w)
		return context.Cause(ctx)
	}
}

// arrive is nil when there is room, or who waits for it.
func (g *gate) arrive(slot *pump.Slot) *waiter {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.room > 0 {
		g.room--
		return nil
	}
	w := &waiter{slot, make(chan struct{})}
	g.waiting = append(g.waiting, w)
	slot.Free() // before anybody can let w in
	return w
}

// leave makes room, for the first who waits. It comes before the leaving message frees its slot.
func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) == 0 {
		g.room++
		return
	}
	w := g.waiting[0]
	g.waiting = slices.Delete(g.waiting, 0, 1)
	w.slot.Retake()
	close(w.in)
}

// giveUp takes w away. If it was let in at the last moment, the next is.
func (g *gate) giveUp(w *waiter) {
	g.mu.Lock()
	i := slices.Index(g.waiting, w)
	if i >= 0 {
		g.waiting = slices.Delete(g.waiting, i, i+1)
	}
	g.mu.Unlock()
	if i < 0 {
		g.leave()
	}
}

// enterGate waits at a gate that there may be. A behavior may have the message decoded again:
// it is inside already.
func (in *incoming) enterGate(ctx context.Context, g *gate) error {
	if g == nil || in.gate == g {
		return nil
	}
	in.leaveGate() // decoded again as something else
	if err := g.enter(ctx, in.slot); err != nil {
		return err
	}
	in.gate = g
	return nil
}

// leaveGate lets the next message in, before the slot is freed for it.
func (in *incoming) leaveGate() {
	if in.gate != nil {
		in.gate.leave()
		in.gate = nil
	}
}

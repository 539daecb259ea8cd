package pump

import (
	"context"
	"slices"
	"sync"
)

// A Group is a set of pumps of which all can be made to rest, so that one message is processed
// exclusively. Groups do not know of each other. A Group is safe for concurrent use.
type Group struct {
	turn chan struct{} // holds a token from Exclusive to Shared

	mu      sync.Mutex // guards the rest
	pumps   []*Pump
	resting bool
}

// NewGroup returns a group without pumps.
func NewGroup() *Group { return &Group{turn: make(chan struct{}, 1)} }

// Join adds a pump that does not run yet. The pump begins at rest between [Group.Exclusive] and
// [Group.Shared].
func (g *Group) Join(p *Pump) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pumps = append(g.pumps, p)
	if g.resting {
		_ = p.Quiesce(context.Background()) // returns at once: p does not run yet
	}
}

// Leave removes a pump that has ended.
func (g *Group) Leave(p *Pump) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pumps = slices.DeleteFunc(g.pumps, func(other *Pump) bool { return other == p })
}

// Exclusive returns nil when no pump of the group processes a message, and none starts one before
// [Group.Shared] is called. When ctx ends first it returns the cause, and the pumps continue. A
// second caller waits for the first one's Shared.
func (g *Group) Exclusive(ctx context.Context) error {
	select {
	case g.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := g.quiesce(ctx); err != nil {
		g.Shared()
		return err
	}
	return nil
}

func (g *Group) quiesce(ctx context.Context) error {
	pumps := g.setResting(true)
	errs := make(chan error, len(pumps))
	for _, p := range pumps {
		go func() { errs <- p.Quiesce(ctx) }()
	}
	var err error
	for range pumps {
		if e := <-errs; e != nil {
			err = e
		}
	}
	return err
}

// Shared lets all pumps continue after a successful [Group.Exclusive].
func (g *Group) Shared() {
	for _, p := range g.setResting(false) {
		p.Resume()
	}
	<-g.turn
}

func (g *Group) setResting(resting bool) []*Pump {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.resting = resting
	return slices.Clone(g.pumps)
}

package endpoint

import (
	"context"
	"slices"
	"sync"

	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/transport"
)

// process is what handles messages side by side: the pumps of the endpoints that RunAll
// runs together, or those of one that runs by itself. There is none for the program as a whole:
// endpoints that are run apart do not know of each other.
type process struct {
	shared *transport.Shared // of the endpoints' connections; nil for one that runs by itself

	turn chan struct{} // holds a token while somebody is alone, or about to be

	mu    sync.Mutex // guards the rest
	pumps []*pump.Pump
	quiet bool
}

func newProcess() *process { return &process{turn: make(chan struct{}, 1)} }

// join adds a pump. It begins at rest where somebody is alone.
func (p *process) join(one *pump.Pump) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pumps = append(p.pumps, one)
	if p.quiet {
		_ = one.Quiesce(context.Background()) // at once: it does not run yet
	}
}

// leave takes a pump out that does not run any more.
func (p *process) leave(one *pump.Pump) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pumps = slices.DeleteFunc(p.pumps, func(other *pump.Pump) bool { return other == one })
}

// alone returns when no pump has anything in hand, and none starts anything before crowded is
// called. It gives up, with the cause, when ctx ends.
func (p *process) alone(ctx context.Context) error {
	select {
	case p.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := p.quiesce(ctx); err != nil {
		p.crowded()
		return err
	}
	return nil
}

func (p *process) quiesce(ctx context.Context) error {
	p.mu.Lock()
	p.quiet = true
	pumps := slices.Clone(p.pumps)
	p.mu.Unlock()
	errs := make(chan error, len(pumps))
	for _, one := range pumps {
		go func() { errs <- one.Quiesce(ctx) }()
	}
	var err error
	for range pumps {
		if e := <-errs; e != nil {
			err = e
		}
	}
	return err
}

// crowded lets all go on.
func (p *process) crowded() {
	p.mu.Lock()
	p.quiet = false
	pumps := slices.Clone(p.pumps)
	p.mu.Unlock()
	for _, one := range pumps {
		one.Resume()
	}
	<-p.turn
}

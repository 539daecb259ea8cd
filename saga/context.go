package saga

import (
	"context"
	"fmt"
	"sync"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/stateful"
)

// Context gives a step its instance and the message. The methods of the session send messages, as
// in any handler, and write in its transaction: with sqlite.OnCommit(ctx, c, f) or postgres.Tx(ctx,
// c), say. Messages that the instance sends name it in their headers, so that replies to them find
// it.
//
// It is over when the step has returned. Its methods are safe for concurrent use by goroutines of
// the step; State is not.
type Context[S any] struct {
	*endpoint.Session
	// State is the state of the instance: the zero value in a new one. The step changes it, and it
	// is stored when the step has returned nil.
	State S

	in *instance[S]

	mu        sync.Mutex // guards the rest, and the meta of the instance
	over      bool
	completed bool
}

// Key returns the key of the instance.
func (c *Context[S]) Key() string { return c.in.Key }

// Complete ends the instance when the step returns nil: its state is removed, and its waiting
// time-outs are cancelled. Later messages for it are ignored, for as long as the ended instance is
// recorded.
func (c *Context[S]) Complete() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over {
		c.completed = true
	}
}

// ReplyToStarter sends m as a reply to the message that began the instance. It fails if that
// message has no reply-to address, unless an option is [endpoint.To].
func (c *Context[S]) ReplyToStarter(ctx context.Context, m any, opts ...endpoint.ReplyOption) error {
	if err := c.usable(); err != nil {
		return err
	}
	of := &c.in.meta.Starter
	reply := []endpoint.ReplyOption{
		endpoint.To(of.ReplyTo), endpoint.Header(header.CorrelationID, of.CorrelationID),
		stateful.Header{Name: header.SagaID, Value: of.SagaID},
		stateful.Header{Name: header.SagaType, Value: of.SagaType},
	}
	if err := c.Reply(ctx, m, append(reply, opts...)...); err != nil {
		return fmt.Errorf("reply to the message %q that began the instance: %w", of.MessageID, err)
	}
	return nil
}

// usable returns an error when the step has returned.
func (c *Context[S]) usable() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return errReturned
	}
	return nil
}

// end makes the context unusable.
func (c *Context[S]) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
}

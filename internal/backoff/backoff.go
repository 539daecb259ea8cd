// Package backoff paces repeated attempts at something that fails.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff gives pauses that double from Min to Max, each jittered to between
// half and the whole of it. Use by one goroutine at a time.
type Backoff struct {
	Min, Max time.Duration

	next time.Duration
}

// Next is the pause before the next attempt.
func (b *Backoff) Next() time.Duration {
	if b.next == 0 {
		b.next = b.Min
	}
	d := b.next
	b.next = min(2*b.next, b.Max)
	return d/2 + rand.N(d/2+1)
}

// Reset starts again at Min; call it after a success.
func (b *Backoff) Reset() { b.next = 0 }

// Wait pauses for Next. It returns ctx's error when that ends first.
func (b *Backoff) Wait(ctx context.Context) error {
	return Sleep(ctx, b.Next())
}

// Sleep pauses for d. It returns ctx's error when that ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

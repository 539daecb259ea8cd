// Package backoff paces repeated attempts.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff returns pauses that double from Min to Max, each shortened at random by up to a half. It
// is not safe for concurrent use.
type Backoff struct {
	Min, Max time.Duration

	next time.Duration
}

// Next returns the pause before the next attempt.
func (b *Backoff) Next() time.Duration {
	if b.next == 0 {
		b.next = b.Min
	}
	d := b.next
	b.next = min(2*b.next, b.Max)
	return d/2 + rand.N(d/2+1)
}

// Reset starts again at Min. It is called after a success.
func (b *Backoff) Reset() { b.next = 0 }

// Wait sleeps for Next. It returns the cause of ctx when that ends first.
func (b *Backoff) Wait(ctx context.Context) error { return Sleep(ctx, b.Next()) }

// Sleep sleeps for d. It returns the cause of ctx when that ends first.
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

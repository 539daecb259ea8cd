package resilience

import "context"

// Attempt returns the number of the attempt that ctx belongs to, from 1, and the number of attempts
// that its policy allows. Without a policy both are 0, and so they are in handlers of messages
// whose policy has a Timeout alone.
func Attempt(ctx context.Context) (n, most int) {
	a, _ := ctx.Value(attemptKey{}).(attempt)
	return a.n, a.most
}

// WithAttempt returns a context for attempt n of at most most. It is for implementations of
// [Runner] and for the endpoint.
func WithAttempt(ctx context.Context, n, most int) context.Context {
	return context.WithValue(ctx, attemptKey{}, attempt{n, most})
}

type attemptKey struct{}

type attempt struct{ n, most int }

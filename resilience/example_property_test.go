package resilience_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/resilience"
)

// The examples in this file show the fields of a policy, one by one.

var errAway = errors.New("the service is away")

// delays prints the delays of the retries that a policy allows. random is the part of the jitter.
func delays(r resilience.Retry, random float64) {
	p := resilience.Policy{Retry: r}
	var list []time.Duration
	for n := range p.Retries() {
		list = append(list, p.DelayFor(n+1, func() float64 { return random }))
	}
	fmt.Println(list)
}

// Max counts the retries after the first attempt.
func ExampleRetry_max() {
	p := resilience.Policy{Name: "p", Retry: resilience.Retry{Max: 4, Delay: resilience.None}}
	attempts := 0
	err := runner(p).Run(context.Background(), "p", func(context.Context) error {
		attempts++
		return errAway
	})
	fmt.Println(attempts, "attempts:", err)
	// Output: 5 attempts: the service is away
}

// Delay is the delay before each retry, and the unit of growth.
func ExampleRetry_delay() {
	delays(resilience.Retry{Max: 4, Delay: 10 * time.Second}, 0)
	delays(resilience.Retry{Max: 3}, 0) // the default is 2 s
	// Output:
	// [10s 10s 10s 10s]
	// [2s 2s 2s]
}

// Backoff is the growth of the delays.
func ExampleRetry_backoff() {
	delays(resilience.Retry{Max: 4, Delay: 10 * time.Second, Backoff: resilience.Constant}, 0)
	delays(resilience.Retry{Max: 4, Delay: 10 * time.Second, Backoff: resilience.Linear}, 0)
	delays(resilience.Retry{Max: 4, Delay: 10 * time.Second, Backoff: resilience.Exponential}, 0)
	// Output:
	// [10s 10s 10s 10s]
	// [10s 20s 30s 40s]
	// [10s 20s 40s 1m20s]
}

// MaxDelay is the longest delay.
func ExampleRetry_maxDelay() {
	delays(resilience.Retry{Max: 6, Delay: 10 * time.Second, Backoff: resilience.Exponential, MaxDelay: time.Minute}, 0)
	// Output: [10s 20s 40s 1m0s 1m0s 1m0s]
}

// Jitter takes a random share off, so MaxDelay stays the longest delay.
func ExampleRetry_jitter() {
	r := resilience.Retry{Max: 4, Delay: 10 * time.Second, Backoff: resilience.Exponential, MaxDelay: 30 * time.Second, Jitter: 0.5}
	delays(r, 0)   // the longest delays
	delays(r, 0.5) // in the middle
	delays(r, 1)   // the shortest ones
	// Output:
	// [10s 20s 30s 30s]
	// [7.5s 15s 22.5s 22.5s]
	// [5s 10s 15s 15s]
}

// Timeout limits each attempt, not all of them together.
func ExamplePolicy_timeout() {
	p := resilience.Policy{Name: "p", Timeout: 10 * time.Millisecond, Retry: resilience.Retry{Max: 2, Delay: resilience.None}}
	begin := time.Now()
	err := runner(p).Run(context.Background(), "p", func(ctx context.Context) error {
		<-ctx.Done() // a call that takes too long, and observes ctx
		fmt.Println("cause:", context.Cause(ctx))
		return ctx.Err()
	})
	fmt.Println(err)
	fmt.Println("longer than one limit:", time.Since(begin) >= 3*p.Timeout, errors.Is(err, resilience.ErrAttemptTimeout))
	// Output:
	// cause: the attempt has timed out
	// cause: the attempt has timed out
	// cause: the attempt has timed out
	// the attempt has timed out after 10ms: context deadline exceeded
	// longer than one limit: true true
}

package resilience

import (
	"context"
	"time"
)

// Observer observes the executions of a [Runner], for telemetry. It must be safe for concurrent use
// and must not block.
type Observer interface {
	// Begin is called before the first attempt of an execution. The attempts get the returned
	// context, which is derived from ctx.
	Begin(ctx context.Context, p Policy) (context.Context, Observation)
}

// Observation observes one execution. Its methods are called one after the other.
type Observation interface {
	// Retry is called before the delay of retry n, from 1. err is the error of the attempt before.
	Retry(n int, delay time.Duration, err error)
	// Timeout is called after an attempt that failed when its time was over.
	Timeout(n int, limit time.Duration)
	// End is called once, with the error that Run returns. After a panic of the function err is
	// [ErrPanicked].
	End(o Outcome, err error)
}

// Outcome is how an execution ended.
type Outcome string

// The outcomes.
const (
	Succeeded Outcome = "success"
	Failed    Outcome = "failed"
	Cancelled Outcome = "cancelled" // by the caller
)

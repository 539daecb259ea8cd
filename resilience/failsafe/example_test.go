package failsafe_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	failsafego "github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"

	"github.com/holdfast-go/holdfast/resilience"
	"github.com/holdfast-go/holdfast/resilience/failsafe"
)

// A circuit breaker of failsafe-go goes around the call, inside of the function that is retried.
// Every call to the service shares it. While it is open, the attempts fail without a call.
func ExampleNewRunner_circuitBreaker() {
	catalog, err := resilience.NewCatalog(resilience.Policy{
		Name: "prices", Timeout: time.Second, Retry: resilience.Retry{Max: 3, Delay: resilience.None},
	})
	if err != nil {
		panic(err)
	}
	runner := failsafe.NewRunner(catalog)
	breaker := circuitbreaker.NewBuilder[any]().WithFailureThreshold(2).WithDelay(time.Minute).Build()

	calls := 0
	err = runner.Run(context.Background(), "prices", func(ctx context.Context) error {
		return failsafego.With(breaker).WithContext(ctx).Run(func() error {
			calls++
			return errors.New("the service is away") // a call that observes ctx
		})
	})
	fmt.Println(calls, "calls in 4 attempts:", err)
	fmt.Println(errors.Is(err, circuitbreaker.ErrOpen))
	// Output:
	// 2 calls in 4 attempts: circuit breaker open
	// true
}

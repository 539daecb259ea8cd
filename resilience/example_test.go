package resilience_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/resilience"
)

// invoiceEmail allows 5 attempts of 30 s each.
var invoiceEmail = resilience.Policy{
	Name:    "invoice-email",
	Timeout: 30 * time.Second,
	Retry: resilience.Retry{
		Max: 4, Delay: 10 * time.Second, Backoff: resilience.Exponential, MaxDelay: 5 * time.Minute, Jitter: 0.5,
	},
}

// runner returns a runner of one policy. The examples have delays of no time, so that they end at
// once.
func runner(p resilience.Policy) resilience.Runner {
	catalog, err := resilience.NewCatalog(p)
	if err != nil {
		panic(err)
	}
	return resilience.NewRunner(catalog)
}

// A program makes a catalog of its policies and a runner when it starts, and names the policy of
// each call.
func Example() {
	catalog, err := resilience.NewCatalog(invoiceEmail)
	if err != nil {
		panic(err) // lists all mistakes in the policies
	}
	runner := resilience.NewRunner(catalog)

	receipt, err := resilience.Do(context.Background(), runner, "invoice-email", func(ctx context.Context) (string, error) {
		return "accepted", ctx.Err() // a call that observes ctx
	})
	fmt.Println(receipt, err)
	// Output: accepted <nil>
}

// The path of a call: an attempt fails, the runner waits, the next attempt has a fresh time limit,
// and the caller waits until an attempt succeeds.
func ExampleRunner() {
	p := resilience.Policy{Name: "quick", Timeout: time.Minute, Retry: resilience.Retry{Max: 4, Delay: time.Millisecond}}
	var first time.Time
	err := runner(p).Run(context.Background(), "quick", func(ctx context.Context) error {
		n, most := resilience.Attempt(ctx)
		deadline, _ := ctx.Deadline()
		switch n {
		case 1: // 1. the first attempt begins
			fmt.Printf("attempt %d of %d fails\n", n, most)
			first = deadline
			return errors.New("the mail server is away") // 2. it fails, and the runner waits
		case 2: // 3. the second one has a minute of its own
			fmt.Printf("attempt %d of %d, with a later deadline: %t\n", n, most, deadline.After(first))
		}
		return nil
	})
	fmt.Println("the caller gets", err) // 4. the caller has waited until now
	// Output:
	// attempt 1 of 5 fails
	// attempt 2 of 5, with a later deadline: true
	// the caller gets <nil>
}

// After the last retry the caller gets the last error as it is.
func ExampleRunner_exhausted() {
	p := resilience.Policy{Name: "quick", Retry: resilience.Retry{Max: 2, Delay: resilience.None}}
	err := runner(p).Run(context.Background(), "quick", func(ctx context.Context) error {
		n, _ := resilience.Attempt(ctx)
		return fmt.Errorf("failure %d", n)
	})
	fmt.Println(err)
	// Output: failure 3
}

// A cancelled caller gets the cause together with the last error, and no time-out.
func ExampleRunner_cancelled() {
	ctx, cancel := context.WithCancelCause(context.Background())
	p := resilience.Policy{Name: "slow", Retry: resilience.Retry{Delay: time.Hour}}
	err := runner(p).Run(ctx, "slow", func(context.Context) error {
		cancel(errors.New("the program stops"))
		return errors.New("the mail server is away")
	})
	fmt.Println(err)
	// Output:
	// the program stops
	// the mail server is away
}

// An unknown policy is an error with the names of those that there are.
func ExampleRunner_unknownPolicy() {
	err := runner(invoiceEmail).Run(context.Background(), "invoice-mail", func(context.Context) error { return nil })
	fmt.Println(err)
	// Output: resilience: there is no policy "invoice-mail": the catalog has invoice-email
}

// An error that no retry helps is marked. The mark is found through errors that wrap and join.
func ExampleNonRetryable() {
	p := resilience.Policy{Name: "quick", Retry: resilience.Retry{Delay: resilience.None}}
	err := runner(p).Run(context.Background(), "quick", func(ctx context.Context) error {
		n, _ := resilience.Attempt(ctx)
		refused := resilience.NonRetryable(errors.New("there is no such address"))
		return fmt.Errorf("attempt %d: %w", n, refused)
	})
	fmt.Println(err)
	// Output: attempt 1: there is no such address
}

// A failure that is returned as a value is a success for the policy: there is no retry.
func ExampleDo_value() {
	type payment struct{ accepted bool }
	p := resilience.Policy{Name: "quick", Retry: resilience.Retry{Delay: resilience.None}}
	attempts := 0
	result, err := resilience.Do(context.Background(), runner(p), "quick", func(context.Context) (payment, error) {
		attempts++
		return payment{accepted: false}, nil // the card is refused
	})
	fmt.Println(result.accepted, err, attempts)
	// Output: false <nil> 1
}

// All mistakes are found when the program starts.
func ExampleNewCatalog_mistakes() {
	_, err := resilience.NewCatalog(
		resilience.Policy{Name: "quick", Timeout: -time.Second},
		resilience.Policy{Name: "slow", Retry: resilience.Retry{Delay: time.Minute, MaxDelay: time.Second}},
	)
	fmt.Println(err)
	// Output:
	// resilience: policy "quick": Timeout is negative: -1s; 0 is no limit
	// resilience: policy "slow": Retry.MaxDelay is 1s, which is shorter than the first delay, 1m0s
}

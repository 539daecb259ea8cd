package recoverability_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/recoverability"
)

var (
	errRefused   = errors.New("card refused")
	errBusy      = errors.New("bank busy")
	errDuplicate = errors.New("order is there already")
)

// failure is what an endpoint would ask a policy about.
func failure(err error, immediate, delayed int) recoverability.Failure {
	return recoverability.Failure{Err: err, Immediate: immediate, Delayed: delayed}
}

func ExampleConfig_Decide() {
	c := recoverability.Config{Immediate: 2, Delayed: 1, TimeIncrease: 5 * time.Second}
	fmt.Println(c.Decide(failure(errBusy, 1, 0)))
	fmt.Println(c.Decide(failure(errBusy, 2, 0)))
	fmt.Println(c.Decide(failure(errBusy, 3, 0)))
	fmt.Println(c.Decide(failure(errBusy, 3, 1)))
	// Output:
	// retry
	// retry
	// delay for 5s
	// move to error queue "error"
}

// A policy that decides some cases itself and leaves the others to the default.
func ExamplePolicy() {
	defaults := recoverability.Config{Immediate: 3, Delayed: 3, TimeIncrease: 2 * time.Second}
	policy := func(f recoverability.Failure) recoverability.Action {
		if errors.Is(f.Err, errRefused) {
			return recoverability.MoveToError{Queue: "refused-payments"}
		}
		action := defaults.Decide(f)
		if _, delayed := action.(recoverability.Delay); delayed && errors.Is(f.Err, errBusy) {
			return recoverability.Delay{For: 5 * time.Second} // always the same
		}
		return action
	}
	c := defaults
	c.Policy = policy // the Recoverability of an endpoint's Config

	fmt.Println(c.Policy(failure(errRefused, 1, 0)))
	fmt.Println(c.Policy(failure(errBusy, 4, 2)))
	fmt.Println(c.Policy(failure(errors.New("anything else"), 4, 2)))
	// Output:
	// move to error queue "refused-payments"
	// delay for 5s
	// delay for 6s
}

// A policy of one's own bounds the attempts itself: what it answers by Retry or Delay
// for ever is tried for ever.
func ExamplePolicy_full() {
	policy := func(f recoverability.Failure) recoverability.Action {
		switch {
		case errors.Is(f.Err, errRefused):
			return recoverability.MoveToError{Queue: "refused-payments"}
		case errors.Is(f.Err, errDuplicate):
			return recoverability.Discard{Reason: "handled before"}
		case errors.Is(f.Err, errBusy) && f.Delayed < 10:
			return recoverability.Delay{For: 5 * time.Second}
		}
		return recoverability.MoveToError{} // to the configured queue
	}
	fmt.Println(policy(failure(errRefused, 1, 0)))
	fmt.Println(policy(failure(errDuplicate, 1, 0)))
	fmt.Println(policy(failure(errBusy, 1, 9)))
	fmt.Println(policy(failure(errBusy, 1, 10)))
	// Output:
	// move to error queue "refused-payments"
	// discard: handled before
	// delay for 5s
	// move to the error queue
}

// Another attempt would not help: the message goes to the error queue at once.
func ExampleUnrecoverable() {
	charge := func() error {
		return fmt.Errorf("charge order 17: %w", recoverability.Unrecoverable(errRefused))
	}
	err := charge()
	fmt.Println(err)
	fmt.Println(recoverability.IsUnrecoverable(err), errors.Is(err, errRefused))
	fmt.Println(recoverability.Config{}.Decide(failure(err, 1, 0)))
	// Output:
	// charge order 17: card refused
	// true true
	// move to error queue "error"
}

// The other side said when to come back.
func ExampleRetryAfter() {
	err := recoverability.RetryAfter(errBusy, time.Minute)
	fmt.Println(recoverability.Config{}.Decide(failure(err, 1, 0)))
	// Output: delay for 1m0s
}

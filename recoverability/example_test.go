package recoverability_test

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/resilience"
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

// ask has the policy of c decide, as an endpoint with it does.
func ask(c recoverability.Config, f recoverability.Failure) recoverability.Action {
	f.Config = c
	return c.Policy(f)
}

func ExampleConfig_Decide() {
	c := recoverability.Config{Immediate: 2, Delayed: 1, Delays: recoverability.Delays{Delay: 5 * time.Second}}
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

// One kind of error goes to the error queue without another attempt; nothing else changes.
func ExampleConfig_unrecoverable() {
	c := recoverability.Config{
		Unrecoverable: []recoverability.Matcher{recoverability.Is(errRefused), recoverability.As[*net.AddrError]()},
	}
	fmt.Println(c.Decide(failure(fmt.Errorf("charge order 17: %w", errRefused), 1, 0)))
	fmt.Println(c.Decide(failure(&net.AddrError{Err: "mismatched address"}, 1, 0)))
	fmt.Println(c.Decide(failure(errBusy, 1, 0)))
	// Output:
	// move to error queue "error"
	// move to error queue "error"
	// retry
}

// Three retries at once and three delayed ones, each two seconds later than the one before, and one
// kind of error that is not tried again: numbers say it, without a policy.
func ExampleConfig_numbers() {
	c := recoverability.Config{
		Immediate: 3, Delayed: 3, Delays: recoverability.Delays{Delay: 2 * time.Second},
		Unrecoverable: []recoverability.Matcher{recoverability.Is(errRefused)},
	}
	for delayed := range 4 {
		fmt.Println(c.Decide(failure(errBusy, 3, delayed)), "and then", c.Decide(failure(errBusy, 4, delayed)))
	}
	fmt.Println(c.Decide(failure(errRefused, 1, 0)))
	// Output:
	// retry and then delay for 2s
	// retry and then delay for 4s
	// retry and then delay for 6s
	// retry and then move to error queue "error"
	// move to error queue "error"
}

// A policy around the configuration: it takes what that decides, and changes one case.
func ExamplePolicy() {
	c := recoverability.Config{ // the Recoverability of an endpoint's Config
		Immediate: 3, Delayed: 3, Delays: recoverability.Delays{Delay: 2 * time.Second},
		Unrecoverable: []recoverability.Matcher{recoverability.Is(errRefused)},
		Policy: func(f recoverability.Failure) recoverability.Action {
			action := f.Decide()
			if _, delayed := action.(recoverability.Delay); delayed && errors.Is(f.Err, errBusy) {
				return recoverability.Delay{For: 5 * time.Second} // always the same
			}
			return action
		},
	}
	fmt.Println(ask(c, failure(errRefused, 1, 0)))
	fmt.Println(ask(c, failure(errBusy, 3, 2)))
	fmt.Println(ask(c, failure(errBusy, 4, 2)))
	fmt.Println(ask(c, failure(errBusy, 4, 3)))
	fmt.Println(ask(c, failure(errors.New("anything else"), 4, 2)))
	// Output:
	// move to error queue "error"
	// retry
	// delay for 5s
	// move to error queue "error"
	// delay for 6s
}

// A policy that decides everything itself still sees what is configured. It has to end: what it
// answers by Retry or Delay for ever is tried for ever.
func ExamplePolicy_full() {
	c := recoverability.Config{
		Delayed: 3, Unrecoverable: []recoverability.Matcher{recoverability.Is(errRefused)},
		Policy: func(f recoverability.Failure) recoverability.Action {
			switch {
			case f.Unrecoverable():
				return recoverability.MoveToError{Queue: "refused-payments"} // must exist
			case errors.Is(f.Err, errDuplicate):
				return recoverability.Discard{Reason: "handled before"}
			case errors.Is(f.Err, errBusy) && f.Delayed < f.Allowed().Delayed:
				return recoverability.Delay{For: 5 * time.Second}
			}
			return recoverability.MoveToError{} // to the configured queue
		},
	}
	fmt.Println(ask(c, failure(errRefused, 1, 0)))
	fmt.Println(ask(c, failure(errDuplicate, 1, 0)))
	fmt.Println(ask(c, failure(errBusy, 1, 2)))
	fmt.Println(ask(c, failure(errBusy, 1, 3)))
	// Output:
	// move to error queue "refused-payments"
	// discard: handled before
	// delay for 5s
	// move to the error queue
}

// The same by rules, which need no policy.
func ExampleRule() {
	c := recoverability.Config{
		Immediate: recoverability.None, Delayed: recoverability.None,
		Rules: []recoverability.Rule{
			{Errors: []recoverability.Matcher{recoverability.Is(errRefused)}, Action: recoverability.MoveToError{Queue: "refused-payments"}},
			{Errors: []recoverability.Matcher{recoverability.Is(errDuplicate)}, Action: recoverability.Discard{Reason: "handled before"}},
			{
				Errors: []recoverability.Matcher{recoverability.Is(errBusy)}, Delayed: 3, Delays: recoverability.Delays{Delay: 5 * time.Second, Backoff: resilience.Constant},
			},
		},
	}
	fmt.Println(c.Decide(failure(errRefused, 1, 0)))
	fmt.Println(c.Decide(failure(errDuplicate, 1, 0)))
	fmt.Println(c.Decide(failure(errBusy, 1, 2)))
	fmt.Println(c.Decide(failure(errBusy, 1, 3)))
	// Output:
	// move to error queue "refused-payments"
	// discard: handled before
	// delay for 5s
	// move to error queue "error"
}

// Events of one kind are retried less and have an error queue of their own.
func ExampleRule_types() {
	c := recoverability.Config{Rules: []recoverability.Rule{
		{Types: []string{"Shop.IPriceEvent"}, Immediate: recoverability.None, Delayed: 1, ErrorQueue: "prices-failed"},
	}}
	price := failure(errBusy, 1, 0)
	price.Headers.Set(header.EnclosedMessageTypes, "Shop.PriceChanged;Shop.IPriceEvent")
	fmt.Println(c.Decide(price))
	price.Delayed = 1
	fmt.Println(c.Decide(price))
	// Output:
	// delay for 10s
	// move to error queue "prices-failed"
}

// Delays double up to five minutes, and chance takes up to half of each off.
func ExampleDelays() {
	c := recoverability.Config{
		Immediate: recoverability.None, Delayed: 8, Delays: recoverability.Delays{Delay: 10 * time.Second, Backoff: resilience.Exponential, MaxDelay: 5 * time.Minute},
	}
	for delayed := range 7 {
		fmt.Println(c.Decide(failure(errBusy, 1, delayed)))
	}
	c.Delays.Jitter = 0.5
	d := c.Decide(failure(errBusy, 1, 6)).(recoverability.Delay).For
	fmt.Println(d >= 150*time.Second && d <= 5*time.Minute)
	// Output:
	// delay for 10s
	// delay for 20s
	// delay for 40s
	// delay for 1m20s
	// delay for 2m40s
	// delay for 5m0s
	// delay for 5m0s
	// true
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

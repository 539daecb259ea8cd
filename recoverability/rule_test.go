package recoverability

import (
	"io"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/resilience"
)

// ofType is a failed message of a type with a base.
func ofType(f Failure, types string) Failure {
	f.Headers = header.New(header.Field{Name: header.EnclosedMessageTypes, Value: types})
	for f.Type = range header.TypeNames(types) {
		break
	}
	return f
}

var rules = Config{
	Immediate: 2, Delayed: 4, Delays: Delays{Delay: time.Minute},
	Unrecoverable: []Matcher{Is(io.ErrShortWrite)},
	Rules: []Rule{
		{Types: []string{"Shop.Price"}, Errors: []Matcher{Is(io.EOF)}, Action: Discard{Reason: "old"}},
		{Types: []string{"Shop.Price", "Shop.IEvent"}, Immediate: None, Delayed: 1, Delays: Delays{Delay: time.Second}, ErrorQueue: "prices"},
		{Errors: []Matcher{Is(io.ErrNoProgress), As[*cardError]()}, Immediate: 7, Delays: Delays{Backoff: resilience.Constant}},
		{Errors: []Matcher{IsUnrecoverable}, ErrorQueue: "hopeless"},
		{Errors: []Matcher{Is(io.ErrClosedPipe)}, ErrorQueue: "closed", Action: MoveToError{}},
		{Types: []string{"Shop.Price"}, Action: Discard{Reason: "never: the second is first"}},
	},
}

func TestTheFirstRuleThatFitsIsTaken(t *testing.T) {
	const price, event = "Shop.Price, Shop, Version=1.0.0.0", "Shop.Paid;Shop.IEvent, Shop"
	tests := []struct {
		name    string
		failure Failure
		want    Action
		allowed Retries
	}{
		{"no rule", failed(2, 0), Retry{}, Retries{2, 4}},
		{"no rule, no more retries at once", failed(3, 1), Delay{For: 2 * time.Minute}, Retries{2, 4}},
		{"type and error", ofType(with(failed(1, 0), io.EOF), price), Discard{Reason: "old"}, Retries{0, 1}},
		{"an action wins over a mark", ofType(with(failed(1, 0), Unrecoverable(io.EOF)), price), Discard{Reason: "old"}, Retries{0, 1}},
		{"the error, another type", ofType(with(failed(2, 0), io.EOF), "Shop.Order"), Retry{}, Retries{2, 4}},
		{"the type, another error", ofType(failed(1, 0), price), Delay{For: time.Second}, Retries{0, 1}},
		{"the type, given up", ofType(failed(1, 1), price), MoveToError{Queue: "prices"}, Retries{0, 1}},
		{"the type, unrecoverable", ofType(with(failed(1, 0), io.ErrShortWrite), price), MoveToError{Queue: "prices"}, Retries{0, 1}},
		{"a base type", ofType(failed(1, 0), event), Delay{For: time.Second}, Retries{0, 1}},
		{"part of a name", ofType(failed(1, 0), "Shop.PriceList"), Retry{}, Retries{2, 4}},
		{"an error", with(failed(7, 0), &cardError{io.ErrNoProgress}), Retry{}, Retries{7, 4}},
		{"an error's curve", with(failed(8, 3), io.ErrNoProgress), Delay{For: time.Minute}, Retries{7, 4}},
		{"an error's numbers, given up", with(failed(8, 4), io.ErrNoProgress), MoveToError{Queue: "error"}, Retries{7, 4}},
		{"marked", with(failed(1, 0), Unrecoverable(errBroken)), MoveToError{Queue: "hopeless"}, Retries{2, 4}},
		{"to the rule's queue at once", with(failed(1, 0), io.ErrClosedPipe), MoveToError{Queue: "closed"}, Retries{2, 4}},
	}
	tests[2].allowed, tests[3].allowed = Retries{2, 4}, Retries{2, 4} // the rule says nothing of numbers
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := test.failure
			if got := rules.Decide(f); got != test.want {
				t.Errorf("%v, want %v", got, test.want)
			}
			f.Config = rules
			if got := f.Decide(); got != test.want {
				t.Errorf("Failure.Decide: %v, want %v", got, test.want)
			}
			if got := f.Allowed(); got != test.allowed {
				t.Errorf("allowed %v, want %v", got, test.allowed)
			}
		})
	}
}

func TestARuleThatPanicsFitsNothing(t *testing.T) {
	c := Config{Rules: []Rule{{Errors: []Matcher{func(error) bool { panic("no") }}, Action: Discard{}}}}
	if got := c.Decide(failed(1, 0)); got != (Retry{}) {
		t.Errorf("got %v, want a retry", got)
	}
}

func TestRulesAllowNoRetriesThatTheTransportLacks(t *testing.T) {
	before := rules.Rules[1]
	f := ofType(failed(1, 0), "Shop.Price")
	f.Config = rules.WithoutDelayed()
	if got := f.Allowed(); got != (Retries{0, 0}) || f.Decide() != (MoveToError{Queue: "prices"}) {
		t.Errorf("without delays: allowed %v, decided %v", got, f.Decide())
	}
	f = with(failed(1, 0), io.ErrNoProgress)
	f.Config = rules.WithoutImmediate()
	if got := f.Allowed(); got != (Retries{0, 4}) || f.Decide() != (Delay{For: time.Minute}) {
		t.Errorf("without retries at once: allowed %v, decided %v", got, f.Decide())
	}
	f.Config = Config{}.WithoutImmediate().WithoutDelayed()
	if got := f.Allowed(); got != (Retries{}) || f.Decide() != (MoveToError{Queue: "error"}) {
		t.Errorf("without any: allowed %v, decided %v", got, f.Decide())
	}
	if after := rules.Rules[1]; after.Delayed != before.Delayed || after.Immediate != before.Immediate {
		t.Error("the rules of the original changed")
	}
}

func TestTheErrorQueuesThatAreNamed(t *testing.T) {
	c := rules
	c.Rules = append(c.Rules[:len(c.Rules):len(c.Rules)], Rule{Action: MoveToError{Queue: "other"}}, Rule{ErrorQueue: "error"})
	if diff := cmp.Diff([]string{"error", "prices", "hopeless", "closed", "other"}, c.ErrorQueues()); diff != "" {
		t.Error(diff)
	}
}

func TestValidateTellsWhatIsWrongWithRulesAndDelays(t *testing.T) {
	if err := rules.Validate(); err != nil {
		t.Error(err)
	}
	err := Config{
		Delays: Delays{Backoff: 9, MaxDelay: -2, Jitter: 1.5},
		Rules: []Rule{
			{Immediate: -2, Delayed: -3, Delays: Delays{Delay: -1}, Types: []string{""}},
			{Action: Delay{For: time.Second}, Delays: Delays{Jitter: -0.1}},
			{Action: Retry{}},
		},
	}.Validate()
	want := `recoverability: Delays.Backoff is Backoff(9): use resilience.Constant, Linear or Exponential
recoverability: Delays.MaxDelay is negative: -2ns; use None for no bound
recoverability: Delays.Jitter is 1.5: it is a share from 0 to 1, or None
recoverability: rule 1: Immediate is -2: use None for none
recoverability: rule 1: Delayed is -3: use None for none
recoverability: rule 1: Delays.Delay is negative: -1ns; 0 is the default
recoverability: rule 1: a name in Types is empty
recoverability: rule 2: Delays.Jitter is -0.1: it is a share from 0 to 1, or None
recoverability: rule 2: Action is to delay for 1s, without end: use Immediate and Delayed, or Retry
recoverability: rule 3: Action is to retry, without end: use Immediate and Delayed, or Retry`
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Error(diff)
	}
}

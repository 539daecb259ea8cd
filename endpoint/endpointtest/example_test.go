package endpointtest_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/endpoint/endpointtest"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/recoverability"
)

type ChargeCard struct {
	OrderID string
	Cents   int
}

type CardCharged struct{ OrderID string }

// Billing is what is to be tested.
type Billing struct{ Limit int }

var ErrOverLimit = errors.New("over the limit")

func (b Billing) Charge(ctx context.Context, s *endpoint.Session, m ChargeCard) error {
	if m.Cents > b.Limit {
		return recoverability.Unrecoverable(ErrOverLimit)
	}
	return s.Publish(ctx, CardCharged{OrderID: m.OrderID}, endpoint.Header("tenant", s.Header("tenant")))
}

// config is what the program runs, but for the transport.
func config(b Billing) endpoint.Config {
	return endpoint.Config{
		Name: "billing",
		Messages: []endpoint.Message{
			endpoint.Command[ChargeCard]("Billing.ChargeCard"),
			endpoint.Event[CardCharged]("Billing.CardCharged"),
		},
		Handlers: []endpoint.Handler{endpoint.Handle(b.Charge)},
	}
}

func ExampleHandle() {
	ctx := context.Background() // in a test: t.Context()
	result, err := endpointtest.Handle(ctx, config(Billing{Limit: 1000}),
		ChargeCard{OrderID: "4711", Cents: 250}, endpoint.Header("tenant", "acme"))
	if err != nil {
		panic(err) // in a test: t.Fatal(err)
	}
	fmt.Println(result.Outcome)
	for _, sent := range result.Sent {
		fmt.Printf("%s %+v for %s\n", sent.Intent, sent.Value, sent.Headers.Get("tenant"))
	}
	// Output:
	// completed
	// Publish {OrderID:4711} for acme
}

// A handler that fails is a result too.
func ExampleHandle_failure() {
	result, err := endpointtest.Handle(context.Background(), config(Billing{Limit: 1000}),
		ChargeCard{OrderID: "4711", Cents: 250_000})
	if err != nil {
		panic(err)
	}
	fmt.Println(result.Outcome, errors.Is(result.Err, ErrOverLimit))
	fmt.Println(result.Action)
	// Output:
	// moved to error true
	// move to error queue "error"
}

// What happens in a later round of retries is a header away.
func ExampleHandle_lastRetry() {
	cfg := config(Billing{})
	cfg.Handlers = []endpoint.Handler{endpoint.Handle(func(context.Context, *endpoint.Session, ChargeCard) error {
		return errors.New("the bank does not answer")
	})}
	cfg.Recoverability = recoverability.Config{Immediate: recoverability.None, Delayed: 3}
	for _, retries := range []string{"0", "2", "3"} {
		result, err := endpointtest.Handle(context.Background(), cfg, ChargeCard{}, endpoint.Header(header.Retries, retries))
		if err != nil {
			panic(err)
		}
		fmt.Printf("after %s: %v\n", retries, result.Action)
	}
	// Output:
	// after 0: delay for 10s
	// after 2: delay for 30s
	// after 3: move to error queue "error"
}

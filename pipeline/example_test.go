package pipeline_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// A behavior that refuses messages without the header of a tenant.
func ExampleBehavior() {
	tenant := func(next pipeline.Func[*pipeline.Receive]) pipeline.Func[*pipeline.Receive] {
		return func(ctx context.Context, in *pipeline.Receive) error {
			if in.Headers.Get("Tenant") == "" {
				return recoverability.Unrecoverable(errors.New("the message has no Tenant header"))
			}
			return next(ctx, in)
		}
	}

	var p pipeline.Pipeline // the Pipeline of an endpoint's Config
	p.Receive.Use("tenant", tenant)

	// The endpoint does the rest.
	f, err := p.Receive.Then(func(_ context.Context, in *pipeline.Receive) error {
		fmt.Println("handled for", in.Headers.Get("Tenant"))
		return nil
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, headers := range []header.Map{header.New(header.Field{Name: "Tenant", Value: "acme"}), {}} {
		in := pipeline.NewReceive(&transport.Message{Headers: headers}, nil)
		if err := f(context.Background(), &in); err != nil {
			fmt.Println("failed:", err)
		}
	}
	// Output:
	// handled for acme
	// failed: the message has no Tenant header
}

// A message that crashes the process never reaches recoverability, but the broker counts its
// deliveries: a behavior can fail it before it is handled.
func ExampleBehavior_endlessRetries() {
	limit := func(next pipeline.Func[*pipeline.Receive]) pipeline.Func[*pipeline.Receive] {
		return func(ctx context.Context, in *pipeline.Receive) error {
			if in.Attempt.N > 30 {
				return recoverability.Unrecoverable(fmt.Errorf("delivered %d times", in.Attempt.N))
			}
			return next(ctx, in)
		}
	}

	f := limit(func(context.Context, *pipeline.Receive) error { return nil })
	in := pipeline.NewReceive(&transport.Message{}, nil)
	in.Attempt = transport.Attempt{N: 31, Exact: true}
	err := f(context.Background(), &in)
	fmt.Println(err, recoverability.IsUnrecoverable(err))
	// Output: delivered 31 times true
}

// say returns a behavior that prints its name.
func say(name string) pipeline.Behavior[*pipeline.Invoke] {
	return func(next pipeline.Func[*pipeline.Invoke]) pipeline.Func[*pipeline.Invoke] {
		return func(ctx context.Context, in *pipeline.Invoke) error {
			fmt.Println(name)
			return next(ctx, in)
		}
	}
}

func ExampleStage() {
	var s pipeline.Stage[*pipeline.Invoke]
	s.Use("log", say("log"))
	s.Use("validate", say("validate"))
	s.Before("validate", "authorise", say("authorise"))
	s.After("log", "measure", say("measure"))
	fmt.Println(s.Names())

	s.Replace("log", say("log to a file"))
	s.Remove("measure")
	f, err := s.Then(func(context.Context, *pipeline.Invoke) error {
		fmt.Println("handler")
		return nil
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := f(context.Background(), &pipeline.Invoke{}); err != nil {
		fmt.Println(err)
	}
	// Output:
	// [log measure authorise validate]
	// log to a file
	// authorise
	// validate
	// handler
}

func ExampleStage_Before() {
	var s pipeline.Stage[*pipeline.Invoke]
	s.Use("retry", say("retry"))
	s.Before("retry", "log", say("log"))
	fmt.Println(s.Names())
	// Output: [log retry]
}

func ExampleStage_After() {
	var s pipeline.Stage[*pipeline.Invoke]
	s.Use("log", say("log"))
	s.Use("validate", say("validate"))
	s.After("log", "authorise", say("authorise"))
	fmt.Println(s.Names())
	// Output: [log authorise validate]
}

// The errors of composing a stage are returned by New of the endpoint.
func ExampleStage_Then() {
	var s pipeline.Stage[*pipeline.Invoke]
	s.Use("log", say("log"))
	s.Use("log", say("again"))
	s.Before("authorize", "validate", say("validate"))
	_, err := s.Then(func(context.Context, *pipeline.Invoke) error { return nil })
	fmt.Println(err)
	// Output:
	// behavior "log" is there already: use Replace, or another name
	// there is no behavior "authorize" to put "validate" before: there are ["log"]
}

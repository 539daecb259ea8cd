package saga_test

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/saga"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

type (
	RegisterGuest struct{ Email string }
	ConfirmGuest  struct{ Email string }
	AskCredit     struct{ Email string }
	CreditFound   struct{ Cents int }
	Reminder      struct{}
	Registered    struct{ Email string }
)

// Guest is the state of the saga in these examples.
type Guest struct {
	Cents     int
	Reminders int
}

// untilStop returns a context that stop ends. The handler that prints an example's last line calls
// stop.
func untilStop() (ctx context.Context, stop context.CancelFunc) {
	return context.WithTimeout(context.Background(), time.Minute) // only where the last line never comes
}

// runExample runs an endpoint with handlers until ctx ends, and sends it messages one after the
// other.
func runExample(ctx context.Context, handlers []endpoint.Handler, messages ...any) {
	guests, err := endpoint.New(endpoint.Config{
		Name: "guests", Transport: &inmemory.Transport{}, Install: true,
		Transactions: endpoint.SendsAtomicWithReceive, Concurrency: 1,
		Messages: []endpoint.Message{
			endpoint.Command[RegisterGuest]("Hotel.RegisterGuest"), endpoint.Command[ConfirmGuest]("Hotel.ConfirmGuest"),
			endpoint.Command[AskCredit]("Hotel.AskCredit"), endpoint.Response[CreditFound]("Hotel.CreditFound"),
			endpoint.Command[Reminder]("Hotel.Reminder"), endpoint.Response[Registered]("Hotel.Registered"),
		},
		Handlers: handlers,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	go func() {
		for _, m := range messages {
			if guests.WaitReady(ctx) != nil || guests.SendLocal(ctx, m) != nil {
				return
			}
		}
	}()
	if err := guests.Run(ctx); err != nil {
		fmt.Println(err)
	}
}

func guestOf(m RegisterGuest) string    { return m.Email }
func confirmedOf(m ConfirmGuest) string { return m.Email }

// register is a Start without effect.
func register(context.Context, *saga.Context[Guest], RegisterGuest) error { return nil }

func ExampleStart() {
	ctx, stop := untilStop()
	defer stop()
	register := func(_ context.Context, c *saga.Context[Guest], _ RegisterGuest) error {
		c.State.Reminders++
		fmt.Println(c.Key(), c.State.Reminders)
		if c.State.Reminders == 2 {
			stop()
		}
		return nil
	}
	guests := saga.New("guests", saga.Start(func(m RegisterGuest) string { return m.Email }, register))
	runExample(ctx, guests.Handlers(),
		RegisterGuest{"ada@example.com"}, RegisterGuest{"bob@example.com"}, RegisterGuest{"ada@example.com"})
	// Output:
	// ada@example.com 1
	// bob@example.com 1
	// ada@example.com 2
}

func ExampleOn() {
	ctx, stop := untilStop()
	defer stop()
	confirm := func(_ context.Context, c *saga.Context[Guest], _ ConfirmGuest) error {
		fmt.Println("confirmed:", c.Key())
		c.Complete()
		if c.Key() == "bob@example.com" {
			stop()
		}
		return nil
	}
	guests := saga.New("guests", saga.Start(guestOf, register), saga.On(confirmedOf, confirm))
	runExample(ctx, guests.Handlers(),
		RegisterGuest{"ada@example.com"}, ConfirmGuest{"ada@example.com"}, ConfirmGuest{"ada@example.com"}, // the last one is ignored
		RegisterGuest{"bob@example.com"}, ConfirmGuest{"bob@example.com"})
	// Output:
	// confirmed: ada@example.com
	// confirmed: bob@example.com
}

func ExampleMessageStep_OrElse() {
	ctx, stop := untilStop()
	defer stop()
	confirm := func(context.Context, *saga.Context[Guest], ConfirmGuest) error { return nil }
	unknown := func(_ context.Context, _ *endpoint.Session, m ConfirmGuest) error {
		fmt.Println("unknown:", m.Email)
		stop()
		return nil
	}
	guests := saga.New("guests", saga.Start(guestOf, register), saga.On(confirmedOf, confirm).OrElse(unknown))
	runExample(ctx, guests.Handlers(), ConfirmGuest{"eve@example.com"})
	// Output: unknown: eve@example.com
}

func ExampleOnTimeout() {
	ctx, stop := untilStop()
	defer stop()
	register := func(ctx context.Context, c *saga.Context[Guest], _ RegisterGuest) error {
		return c.SetTimeout(ctx, "reminder", Reminder{}, endpoint.After(20*time.Millisecond))
	}
	remind := func(ctx context.Context, c *saga.Context[Guest], _ Reminder) error {
		if c.State.Reminders++; c.State.Reminders == 3 {
			fmt.Println("given up:", c.Key())
			c.Complete()
			stop()
			return nil
		}
		fmt.Println("please confirm,", c.Key())
		return c.SetTimeout(ctx, "reminder", Reminder{}, endpoint.After(20*time.Millisecond))
	}
	guests := saga.New("guests", saga.Start(guestOf, register), saga.OnTimeout(remind))
	runExample(ctx, guests.Handlers(), RegisterGuest{"ada@example.com"})
	// Output:
	// please confirm, ada@example.com
	// please confirm, ada@example.com
	// given up: ada@example.com
}

func ExampleOnReply() {
	ctx, stop := untilStop()
	defer stop()
	register := func(ctx context.Context, c *saga.Context[Guest], m RegisterGuest) error {
		return c.SendLocal(ctx, AskCredit(m)) // to another endpoint, as a rule
	}
	found := func(_ context.Context, c *saga.Context[Guest], m CreditFound) error {
		c.State.Cents = m.Cents
		fmt.Println(c.Key(), "has", m.Cents)
		stop()
		return nil
	}
	credit := endpoint.Handle(func(ctx context.Context, s *endpoint.Session, _ AskCredit) error {
		return s.Reply(ctx, CreditFound{Cents: 4200})
	})
	guests := saga.New("guests", saga.Start(guestOf, register), saga.OnReply(found))
	runExample(ctx, append(guests.Handlers(), credit), RegisterGuest{"ada@example.com"})
	// Output: ada@example.com has 4200
}

func ExampleContext_ReplyToStarter() {
	ctx, stop := untilStop()
	defer stop()
	confirm := func(ctx context.Context, c *saga.Context[Guest], _ ConfirmGuest) error {
		c.Complete()
		return c.ReplyToStarter(ctx, Registered{Email: c.Key()})
	}
	answered := endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m Registered) error {
		fmt.Println("registered:", m.Email)
		stop()
		return nil
	})
	guests := saga.New("guests", saga.Start(guestOf, register), saga.On(confirmedOf, confirm))
	runExample(ctx, append(guests.Handlers(), answered),
		RegisterGuest{"ada@example.com"}, ConfirmGuest{"ada@example.com"})
	// Output: registered: ada@example.com
}

package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/resilience"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// SendInvoice is a command.
type SendInvoice struct{ InvoiceID string }

// invoiceEmail has short delays, because an example takes no longer than its reader's patience.
var invoiceEmail = resilience.Policy{
	Name: "invoice-email", Timeout: 30 * time.Second,
	Retry: resilience.Retry{Max: 4, Delay: time.Millisecond, Backoff: resilience.Exponential, MaxDelay: 5 * time.Millisecond},
}

// mailing is an endpoint whose handler fails twice.
func mailing(retry resilience.Use, done func()) endpoint.Config {
	return endpoint.Config{
		Name: "mailing", Transport: &inmemory.Transport{}, Install: true,
		Messages: []endpoint.Message{endpoint.Command[SendInvoice]("Shop.SendInvoice").To("mailing")},
		Handlers: []endpoint.Handler{
			endpoint.Handle(func(ctx context.Context, s *endpoint.Session, _ SendInvoice) error {
				n, most := resilience.Attempt(ctx)
				_, limited := ctx.Deadline()
				fmt.Printf("attempt %d of %d: delayed retries %q, limited %t\n", n, most, s.Header(header.Retries), limited)
				if n < 3 {
					return errors.New("the mail server is busy")
				}
				done()
				return nil
			}),
		},
		Recoverability: recoverability.Config{Rules: []recoverability.Rule{{Types: []string{"Shop.SendInvoice"}, Retry: retry}}},
		Logger:         slog.New(slog.DiscardHandler),
	}
}

// sendInvoice runs an endpoint and sends it a command.
func sendInvoice(ctx context.Context, cfg endpoint.Config) {
	e, err := endpoint.New(cfg)
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		if err := errors.Join(e.WaitReady(ctx), e.Send(ctx, SendInvoice{"i-1"})); err != nil {
			log.Fatal(err)
		}
	}()
	if err := e.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

// An inline policy retries within the delivery. The message waits in the memory of the process,
// without a slot.
func ExampleConfig_inline() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	sendInvoice(ctx, mailing(resilience.Inline(invoiceEmail), stop))
	// Output:
	// attempt 1 of 5: delayed retries "", limited true
	// attempt 2 of 5: delayed retries "", limited true
	// attempt 3 of 5: delayed retries "", limited true
}

// A deferred policy retries by delayed copies, which wait at the broker. The state of the retries
// is in their headers, and Notify is told when the next attempt is due.
func ExampleConfig_deferred() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	cfg := mailing(resilience.Deferred(invoiceEmail), stop)
	cfg.Notify = append(cfg.Notify, func(_ context.Context, n recoverability.Notification) {
		fmt.Println(n.Failure.Resilience().Policy.Name, "waits:", n.Action)
	})
	sendInvoice(ctx, cfg)
	// Unordered output:
	// attempt 1 of 5: delayed retries "", limited true
	// invoice-email waits: delay for 1ms
	// attempt 2 of 5: delayed retries "1", limited true
	// invoice-email waits: delay for 2ms
	// attempt 3 of 5: delayed retries "2", limited true
}

// A time-out is of one attempt. An error after it is a failed attempt, which is retried like any
// other.
func ExampleMessage_Timeout() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	cfg := mailing(resilience.Use{}, stop)
	cfg.Messages[0] = cfg.Messages[0].Timeout(time.Millisecond)
	cfg.Recoverability = recoverability.Config{Immediate: recoverability.None, Delayed: recoverability.None}
	cfg.Handlers = []endpoint.Handler{endpoint.Handle(func(ctx context.Context, _ *endpoint.Session, _ SendInvoice) error {
		<-ctx.Done()
		return fmt.Errorf("send: %w", context.Cause(ctx))
	})}
	cfg.OnFinalFailure = func(_ context.Context, _ *endpoint.Session, f recoverability.Failure) error {
		fmt.Println(recoverability.Class(f.Err), errors.Is(f.Err, resilience.ErrAttemptTimeout))
		stop()
		return nil
	}
	sendInvoice(ctx, cfg)
	// Output: timeout true
}

// A message can name its policy. That does not need a rule.
func ExampleConfig_namedPolicy() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	cfg := mailing(resilience.Use{}, stop)
	cfg.Recoverability = recoverability.Config{Policies: resilience.MustCatalog(invoiceEmail)}
	e, err := endpoint.New(cfg)
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		err := errors.Join(e.WaitReady(ctx), e.Send(ctx, SendInvoice{"i-1"}, endpoint.Header(header.HoldfastPolicy, "invoice-email")))
		if err != nil {
			log.Fatal(err)
		}
	}()
	if err := e.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// attempt 1 of 5: delayed retries "", limited true
	// attempt 2 of 5: delayed retries "1", limited true
	// attempt 3 of 5: delayed retries "2", limited true
}

package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/resilience"
	"github.com/holdfast-go/holdfast/schedule"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

type (
	SendInvoice struct{ OrderID string }
	RetryMails  struct{}
)

// A job with a deferred policy waits for its retries without a slot: another attempt has the same
// job and another run.
func ExampleScheduler_EnqueueFrom() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	scheduler, err := schedule.New(schedule.Config{})
	if err != nil {
		log.Fatal(err)
	}
	var runs []schedule.Run
	cfg := endpoint.Config{
		Name: "billing", Transport: &inmemory.Transport{}, Install: true, Transactions: endpoint.SendsAtomicWithReceive,
		Messages: []endpoint.Message{endpoint.Command[SendInvoice]("Shop.SendInvoice")},
		Handlers: []endpoint.Handler{endpoint.Handle(func(ctx context.Context, _ *endpoint.Session, _ SendInvoice) error {
			run, _ := schedule.RunOf(ctx)
			if runs = append(runs, run); len(runs) == 1 {
				return errors.New("the mail server refuses the mail")
			}
			return nil
		})},
		Recoverability: recoverability.Config{Policies: resilience.MustCatalog(
			resilience.Policy{Name: "invoice-email", Retry: resilience.Retry{Max: 4, Delay: 2 * time.Second}}, // 10 s, in a shop
		)},
		Logger: slog.New(slog.DiscardHandler),
	}
	scheduler.Apply(&cfg)
	billing, err := endpoint.New(cfg)
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		defer stop()
		if billing.WaitReady(ctx) != nil {
			return // Run returns the error
		}
		id, err := scheduler.EnqueueFrom(ctx, billing, SendInvoice{"4711"}, schedule.Policy("invoice-email"), schedule.Correlation("4711"))
		if err != nil {
			log.Print(err)
			return
		}
		for _, status := range []schedule.Status{schedule.WaitingRetry, schedule.Succeeded} {
			job := await(ctx, scheduler, billing, id, status)
			fmt.Printf("order %s: %s, attempt %d of %d\n", job.Correlation, job.Status, job.Attempt, job.MaxAttempts)
		}
	}()
	if err := billing.Run(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("one job:", runs[0].JobID == runs[1].JobID, "two runs:", runs[0].RunID != runs[1].RunID)
	// Output:
	// order 4711: WaitingRetry, attempt 1 of 5
	// order 4711: Succeeded, attempt 2 of 5
	// one job: true two runs: true
}

// await returns a job once it has a status.
func await(ctx context.Context, s *schedule.Scheduler, ep *endpoint.Endpoint, id string, status schedule.Status) schedule.Job {
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // only where the job never has it
	defer cancel()
	jobs, err := s.Inspector(ep)
	for err == nil && ctx.Err() == nil {
		var job schedule.Job
		if job, _, err = jobs.Job(ctx, id); job.Status == status {
			return job
		}
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
	log.Print(err)
	return schedule.Job{}
}

// An inline policy retries within the delivery of an occurrence: for short, idempotent work.
func ExampleSchedule_inline() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	scheduler, err := schedule.New(schedule.Config{Schedules: []schedule.Schedule{
		{Name: "retry-mails", After: time.Second, Message: RetryMails{}}, // a minute, in a shop
	}})
	if err != nil {
		log.Fatal(err)
	}
	cfg := endpoint.Config{
		Name: "billing", Transport: &inmemory.Transport{}, Install: true, Transactions: endpoint.SendsAtomicWithReceive,
		Messages: []endpoint.Message{endpoint.Command[RetryMails]("Shop.RetryMails")},
		Handlers: []endpoint.Handler{endpoint.Handle(func(ctx context.Context, _ *endpoint.Session, _ RetryMails) error {
			n, most := resilience.Attempt(ctx)
			run, _ := schedule.RunOf(ctx)
			fmt.Printf("%s: attempt %d of %d\n", run.Schedule, n, most)
			if n == 1 {
				return errors.New("the mail server is away")
			}
			stop()
			return nil
		})},
		Recoverability: recoverability.Config{Rules: []recoverability.Rule{{
			Types: []string{"Shop.RetryMails"},
			Retry: resilience.Inline(resilience.Policy{Name: "mails", Retry: resilience.Retry{Max: 2, Delay: 10 * time.Millisecond}}),
		}}},
		Logger: slog.New(slog.DiscardHandler),
	}
	scheduler.Apply(&cfg)
	billing, err := endpoint.New(cfg)
	if err != nil {
		log.Fatal(err)
	}
	if err := billing.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// retry-mails: attempt 1 of 3
	// retry-mails: attempt 2 of 3
}

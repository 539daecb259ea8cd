// Command jobs shows a schedule and a job: an order is charged, and its invoice is a job that is
// sent with what the handler writes. The mail server refuses the invoice twice, so the job waits
// for its retries. A report is built at times.
//
//	go run ./examples/jobs
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/resilience"
	"github.com/holdfast-go/holdfast/schedule"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

type (
	ChargeOrder struct{ OrderID string }
	SendInvoice struct{ OrderID string }
	BuildReport struct{}
)

// invoiceMail is the policy by which invoices are retried.
var invoiceMail = resilience.Policy{Name: "invoice-email", Timeout: 30 * time.Second, Retry: resilience.Retry{
	Max: 4, Delay: 100 * time.Millisecond, Backoff: resilience.Exponential, MaxDelay: 5 * time.Minute, // from 10 s, in a shop
}}

// Billing has the handlers.
type Billing struct {
	scheduler *schedule.Scheduler
	refused   atomic.Int32
	job       chan string        // the id of the invoice's job
	ended     chan struct{}      // closed when the job has ended
	reported  context.CancelFunc // ends the example
}

func (b *Billing) charge(ctx context.Context, s *endpoint.Session, m ChargeOrder) error {
	id, err := b.scheduler.Enqueue(ctx, s, SendInvoice(m), schedule.Correlation(m.OrderID), schedule.Policy(invoiceMail.Name))
	if err != nil {
		return err
	}
	b.job <- id // in a shop: return s.Reply(ctx, InvoiceQueued{Job: id})
	return nil
}

func (b *Billing) invoice(ctx context.Context, _ *endpoint.Session, m SendInvoice) error {
	run, _ := schedule.RunOf(ctx)
	if b.refused.Add(1) <= 2 {
		fmt.Printf("invoice %s: attempt %d is refused\n", m.OrderID, run.Attempt)
		return errors.New("the mail server refuses the mail")
	}
	fmt.Printf("invoice %s: attempt %d is sent\n", m.OrderID, run.Attempt)
	return nil
}

func (b *Billing) report(ctx context.Context, _ *endpoint.Session, _ BuildReport) error {
	select {
	case <-b.ended: // the example prints the report last
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	run, _ := schedule.RunOf(ctx)
	fmt.Printf("a report of schedule %q\n", run.Schedule)
	b.reported()
	return nil
}

func main() {
	if err := run(context.Background()); err != nil {
		log.Print(err)
	}
}

func run(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "holdfast-jobs")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	scheduler, err := schedule.New(schedule.Config{Schedules: []schedule.Schedule{
		{Name: "reports", Every: 2 * time.Second, Message: BuildReport{}}, // in a shop: Cron: "30 2 * * *", Zone: "Europe/Berlin"
	}})
	if err != nil {
		return err
	}
	b := &Billing{scheduler: scheduler, job: make(chan string, 1), ended: make(chan struct{}), reported: stop}
	cfg := endpoint.Config{
		// With PostgreSQL: &postgres.Transport{URL: url}. With another broker: Outbox:
		// &postgres.Transport{URL: url}.
		Name: "billing", Transport: &sqlite.Transport{Path: filepath.Join(dir, "billing.db")}, Install: true,
		Transactions: endpoint.SendsAtomicWithReceive,
		Messages: []endpoint.Message{
			endpoint.Command[ChargeOrder]("Shop.ChargeOrder"), endpoint.Command[SendInvoice]("Shop.SendInvoice"),
			endpoint.Command[BuildReport]("Shop.BuildReport"),
		},
		Handlers:       []endpoint.Handler{endpoint.Handle(b.charge), endpoint.Handle(b.invoice), endpoint.Handle(b.report)},
		Recoverability: recoverability.Config{Policies: resilience.MustCatalog(invoiceMail)},
	}
	scheduler.Apply(&cfg)
	billing, err := endpoint.New(cfg)
	if err != nil {
		return err
	}
	go func() {
		if err := b.watch(ctx, billing); err != nil && ctx.Err() == nil {
			log.Print(err)
			stop()
		}
	}()
	return billing.Run(ctx)
}

// watch charges an order, and prints the states of its job.
func (b *Billing) watch(ctx context.Context, billing *endpoint.Endpoint) error {
	if err := billing.WaitReady(ctx); err != nil {
		return err
	}
	if err := billing.SendLocal(ctx, ChargeOrder{"4711"}); err != nil {
		return err
	}
	jobs, err := b.scheduler.Inspector(billing)
	if err != nil {
		return err
	}
	id := <-b.job
	for {
		job, known, err := jobs.Job(ctx, id)
		if err != nil {
			return err
		}
		if known && job.Status.Ended() {
			fmt.Printf("the job of order %s: %s after %d attempts of %d\n", job.Correlation, job.Status, job.Attempt, job.MaxAttempts)
			close(b.ended)
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

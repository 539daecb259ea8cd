package acceptance_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/schedule"
	"github.com/holdfast-go/holdfast/transport/inmemory"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

// A file has one writer at a time, and the states of a job are written beside the transaction of
// its handler.
func TestAJobOnSQLiteIsRetriedAtOnce(t *testing.T) {
	for name, broker := range map[string]*inmemory.Transport{"atomic": nil, "outbox": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			scheduler, err := schedule.New(schedule.Config{})
			must(t, err)
			db := &sqlite.Transport{Path: filepath.Join(t.TempDir(), "shop.db"), Relaxed: true}
			failures := 2
			cfg := endpoint.Config{
				Name: "sales", Install: true, Transport: db, Transactions: endpoint.SendsAtomicWithReceive, Concurrency: 1,
				Messages: []endpoint.Message{endpoint.Command[work]("Shop.Work"), endpoint.Command[worked]("Shop.Worked").To("sales")},
				Handlers: []endpoint.Handler{
					endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m work) error {
						if err := s.Send(ctx, worked(m)); err != nil {
							return err
						}
						if _, err := s.Tx(ctx); err != nil { // which has begun when the handler fails
							return err
						}
						if failures--; failures >= 0 {
							return errors.New("not yet")
						}
						return nil
					}),
					endpoint.Handle(func(context.Context, *endpoint.Session, worked) error { return nil }),
				},
			}
			if broker != nil {
				broker.CreateQueues("error")
				cfg.Transport, cfg.Outbox, cfg.Transactions = broker, db, endpoint.ReceiveOnly
			}
			scheduler.Apply(&cfg)
			e, err := endpoint.New(cfg)
			must(t, err)
			done := make(chan error, 1)
			go func() { done <- e.Run(ctx) }()
			must(t, e.WaitReady(ctx))
			id, err := scheduler.EnqueueFrom(ctx, e, work{1})
			must(t, err)
			inspector, err := scheduler.Inspector(e)
			must(t, err)
			for {
				job, known, err := inspector.Job(ctx, id)
				must(t, err)
				if known && job.Status.Ended() {
					if job.Status != schedule.Succeeded || job.Attempt != 3 || job.Interrupted != 0 {
						t.Errorf("%+v", job)
					}
					break
				}
				must(t, backoff.Sleep(ctx, 20*time.Millisecond))
			}
			cancel()
			must(t, <-done)
		})
	}
}

package acceptance_test

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/schedule"
	"github.com/holdfast-go/holdfast/transport"
)

// startSchedule runs a process whose schedule has an interval, and returns its inspector and a
// function that ends the process.
func startSchedule(t *testing.T, broker transport.Transport, every time.Duration) (inspector *schedule.Inspector, stop func()) {
	t.Helper()
	scheduler, err := schedule.New(schedule.Config{Schedules: []schedule.Schedule{{Name: "reports", Every: every, Message: work{}}}})
	must(t, err)
	cfg := endpoint.Config{
		Name: "work", Transport: broker, Install: true, Transactions: endpoint.SendsAtomicWithReceive, Concurrency: 2,
		Messages: []endpoint.Message{endpoint.Command[work]("Shop.Work")},
		Handlers: []endpoint.Handler{endpoint.Handle(func(context.Context, *endpoint.Session, work) error { return nil })},
	}
	scheduler.Apply(&cfg)
	e, err := endpoint.New(cfg)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	must(t, e.WaitReady(ctx))
	inspector, err = scheduler.Inspector(e)
	must(t, err)
	return inspector, func() {
		t.Helper()
		cancel()
		must(t, <-done)
	}
}

// Versions of a program with different intervals start one after the other, and the last one
// decides. Each process has a record, which ends with the process.
func TestScheduleDeployments(t *testing.T) {
	onBrokers(t, []string{"sqlite", "postgres"}, []string{"memory"}, func(t *testing.T, broker string) {
		place := openBroker(t, broker)
		conn, err := place.Open(t.Context(), transport.Env{Endpoint: "tool"})
		must(t, err)
		defer conn.Close()
		db, err := stateful.DatabaseOn(conn)
		must(t, err)
		within, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		until := func(inspector *schedule.Inspector, times string, processes int) {
			t.Helper()
			for {
				snapshot, err := inspector.Snapshot(t.Context())
				must(t, err)
				records, err := db.Records(t.Context(), transport.RecordPage{Kind: stateful.KindOf("work", "holdfast.schedules.processes"), Limit: 10})
				must(t, err)
				if len(snapshot.Schedules) == 1 && snapshot.Schedules[0].Times == times && len(records) == processes {
					return
				}
				if backoff.Sleep(within, 20*time.Millisecond) != nil {
					t.Fatalf("%+v, %d records of processes, want %s and %d", snapshot.Schedules, len(records), times, processes)
				}
			}
		}
		first, stopFirst := startSchedule(t, place, time.Hour)
		until(first, "every 1h0m0s", 1)
		second, stopSecond := startSchedule(t, place, 2*time.Hour)
		until(second, "every 2h0m0s", 2)
		stopFirst()
		until(second, "every 2h0m0s", 1)
		third, stopThird := startSchedule(t, place, time.Hour)
		until(third, "every 1h0m0s", 2)
		stopSecond()
		until(third, "every 1h0m0s", 1)
		inspector, err := schedule.Inspect(conn, "work")
		must(t, err)
		stopThird()
		until(inspector, "every 1h0m0s", 0)
	})
}

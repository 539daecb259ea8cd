// Program shop runs an endpoint with sagas, timers, jobs, a schedule and an outbox until its standard input ends. It is built
// from this checkout and from an earlier commit, so that two versions share queues, states, jobs and rows.
//
// Usage: shop BROKER PLACE [OUTBOX]. Each attempt is a line on standard output: the number of the order, and the outcome.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/saga"
	"github.com/holdfast-go/holdfast/schedule"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/postgres"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

type (
	task    struct{ N int } // begins an order
	unpaid  struct{}        // the order's time-out
	ship    struct{ N int } // the order's job
	tick    struct{}        // of the schedule
	ticked  struct{}
	result  struct{ N int }
	shipped struct{ N int }
	order   struct{ N int }
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "shop:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	scheduler, err := schedule.New(schedule.Config{Schedules: []schedule.Schedule{{Name: "ticks", Every: time.Second, Message: tick{}}}})
	if err != nil {
		return err
	}
	cfg := endpoint.Config{
		Name: "mixed", Concurrency: 4, Install: true,
		Messages: []endpoint.Message{
			endpoint.Command[task]("Mixed.Task"), endpoint.Command[unpaid]("Mixed.Unpaid"), endpoint.Command[ship]("Mixed.Ship"),
			endpoint.Command[tick]("Mixed.Tick"),
			endpoint.Command[result]("Mixed.Result").To("results"), endpoint.Command[shipped]("Mixed.Shipped").To("results"),
			endpoint.Command[ticked]("Mixed.Ticked").To("ticks"),
		},
		Recoverability: recoverability.Config{Immediate: 2, Delayed: 1, Delays: recoverability.Delays{Delay: 500 * time.Millisecond}},
		Logger:         slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError + 4})),
	}
	cfg.Transport = transportOf(args[0], args[1])
	if len(args) > 2 {
		cfg.Outbox = transportOf("postgres", args[2])
	} else {
		cfg.Transactions = endpoint.SendsAtomicWithReceive
	}
	cfg.Handlers = append(orders(scheduler).Handlers(), endpoint.Handle(shipOrder), endpoint.Handle(onTick))
	scheduler.Apply(&cfg)
	e, err := endpoint.New(cfg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	if err := e.Run(ctx); ctx.Err() == nil {
		return err
	}
	return nil // stopped, perhaps while starting
}

func transportOf(broker, place string) transport.Transport {
	switch broker {
	case "postgres":
		return &postgres.Transport{URL: place, Lease: 2 * time.Second}
	case "sqlite":
		return &sqlite.Transport{Path: place, Lease: 2 * time.Second}
	default:
		return &rabbitmq.Transport{URL: place}
	}
}

// orders is the saga: an order enqueues its job, waits for a second, and sends its result.
func orders(scheduler *schedule.Scheduler) *saga.Saga[order] {
	begin := func(ctx context.Context, c *saga.Context[order], m task) error {
		if m.N%97 == 13 { // ends the process
			fmt.Println(m.N, "crash")
			os.Exit(3)
		}
		fmt.Println(m.N, "ok")
		c.State.N = m.N
		if _, err := scheduler.Enqueue(ctx, c.Session, ship(m)); err != nil {
			return err
		}
		return c.SetTimeout(ctx, "unpaid", unpaid{}, endpoint.After(time.Second))
	}
	end := func(ctx context.Context, c *saga.Context[order], _ unpaid) error {
		c.Complete()
		return c.Send(ctx, result{c.State.N})
	}
	return saga.New("orders", saga.Start(func(m task) string { return fmt.Sprint(m.N) }, begin), saga.OnTimeout(end))
}

func shipOrder(ctx context.Context, s *endpoint.Session, m ship) error {
	if m.N%10 == 0 { // never works
		fmt.Println(m.N, "failed")
		return errors.New("no")
	}
	return s.Send(ctx, shipped(m))
}

func onTick(ctx context.Context, s *endpoint.Session, _ tick) error { return s.Send(ctx, ticked{}) }

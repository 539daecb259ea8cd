// Program worker runs an endpoint until its standard input ends. The program of folder worker_d3b9596 does the same with an
// earlier version of this module, so that two versions work on one queue.
//
// Each attempt at a message is a line on standard output: the message's number, and "ok" or "failed".
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
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/postgres"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

type task struct{ N int }

type result struct{ N int }

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
}

func run(broker, place string) error {
	var t transport.Transport
	switch broker {
	case "postgres":
		t = &postgres.Transport{URL: place, Lease: 2 * time.Second}
	case "sqlite":
		t = &sqlite.Transport{Path: place, Lease: 2 * time.Second}
	default:
		t = &rabbitmq.Transport{URL: place}
	}
	e, err := endpoint.New(endpoint.Config{
		Name: "mixed", Transport: t, Concurrency: 4, Install: true,
		Messages:       []endpoint.Message{endpoint.Command[task]("Mixed.Task"), endpoint.Command[result]("Mixed.Result").To("results")},
		Recoverability: recoverability.Config{Immediate: 2, Delayed: 1, Delays: recoverability.Delays{Delay: 500 * time.Millisecond}},
		Logger:         slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError + 4})),
		Handlers: []endpoint.Handler{endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m task) error {
			<-time.After(2 * time.Millisecond)
			switch {
			case m.N%97 == 13: // ends the process
				fmt.Println(m.N, "crash")
				os.Exit(3)
			case m.N%10 == 0: // never works
				fmt.Println(m.N, "failed")
				return errors.New("no")
			case m.N%10 == 1: // a delayed result
				fmt.Println(m.N, "ok")
				return s.Send(ctx, result(m), endpoint.After(time.Second))
			}
			fmt.Println(m.N, "ok")
			return s.Send(ctx, result(m))
		})},
	})
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

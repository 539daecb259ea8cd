// Command peers runs programs that do the work of an outbox without Holdfast, so that an endpoint
// can be compared with them: by hand on the client libraries of RabbitMQ and PostgreSQL, and on
// other libraries.
//
// Usage:
//
//	peers [-messages n] [-rounds n] [-out file] scenario...
//
// AMQP_URL and PG_URL name the servers. Each run is one JSON line. A run whose results are not
// complete fails.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"
)

// longest bounds one run, so that a program that waits forever fails.
const longest = 10 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := command(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// result is the JSON line of a run.
type result struct {
	Scenario string  `json:"scenario"`
	Round    int     `json:"round"`
	Messages int     `json:"n"`
	Seconds  float64 `json:"secs"`
	Rate     float64 `json:"rate"` // messages per second
}

func command(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("peers", flag.ContinueOnError)
	messages := flags.Int("messages", 10_000, "messages of a run, after the warm-up")
	rounds := flags.Int("rounds", 1, "runs of each scenario, in turn")
	out := flags.String("out", "", "`file` to append the results to, instead of printing them")
	flags.Usage = func() {
		fmt.Fprintf(flags.Output(), "usage: peers [flags] scenario...\n\nscenarios:\n")
		for _, s := range scenarios {
			fmt.Fprintf(flags.Output(), "  %-22s %s\n", s.name, s.about)
		}
		fmt.Fprintln(flags.Output(), "\nflags:")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *messages < 1 || *rounds < 1 {
		return fmt.Errorf("-messages and -rounds must be at least 1")
	}
	selected, err := named(flags.Args())
	if err != nil {
		return err
	}
	if *out == "" {
		return measure(ctx, selected, *rounds, *messages, stdout)
	}
	f, err := os.OpenFile(*out, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(measure(ctx, selected, *rounds, *messages, f), f.Close())
}

func measure(ctx context.Context, selected []scenario, rounds, messages int, out io.Writer) error {
	on := servers{amqp: os.Getenv("AMQP_URL"), postgres: os.Getenv("PG_URL")}
	for round := 1; round <= rounds; round++ {
		for _, s := range selected {
			took, err := s.measure(ctx, on, messages)
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			r := result{s.name, round, messages, took.Seconds(), float64(messages) / took.Seconds()}
			if err := json.NewEncoder(out).Encode(r); err != nil {
				return err
			}
		}
	}
	return nil
}

func named(names []string) (selected []scenario, err error) {
	for _, name := range names {
		i := slices.IndexFunc(scenarios, func(s scenario) bool { return s.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no scenario %q: name some of %s", name, scenarioNames())
		}
		selected = append(selected, scenarios[i])
	}
	if len(selected) == 0 {
		return nil, fmt.Errorf("no scenario: name some of %s", scenarioNames())
	}
	return selected, nil
}

func scenarioNames() string {
	names := make([]string, len(scenarios))
	for i, s := range scenarios {
		names[i] = s.name
	}
	return strings.Join(names, ", ")
}

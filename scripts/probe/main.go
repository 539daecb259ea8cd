// Command probe reports whether a broker answers: it logs in at each of the given URLs at once,
// amqp:// or postgres://, and prints the first in their order that lets it in. With -wait it goes
// on trying. It exits with 1 when none does, and says why on standard error.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/backoff"
)

const pause = 100 * time.Millisecond

func main() {
	wait := flag.Duration("wait", 0, "how long to go on trying")
	limit := flag.Duration("limit", 10*time.Second, "how long one try may take")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	found, err := first(ctx, flag.Args(), *wait, *limit)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(found)
}

// first tries all URLs again and again, until a URL answers or wait is over.
func first(ctx context.Context, urls []string, wait, limit time.Duration) (string, error) {
	begin := time.Now()
	for {
		errs := make([]error, len(urls))
		var tries sync.WaitGroup
		for i, u := range urls {
			tries.Go(func() { errs[i] = try(ctx, u, limit) })
		}
		tries.Wait()
		for i, err := range errs {
			if err == nil {
				return urls[i], nil
			}
		}
		if time.Since(begin) >= wait || ctx.Err() != nil {
			return "", errors.Join(errs...)
		}
		_ = backoff.Sleep(ctx, pause) // the end of ctx ends the loop
	}
}

// try logs in once. Its errors are one line, and leave out the password.
func try(ctx context.Context, raw string, limit time.Duration) error {
	u, err := url.Parse(raw)
	if err != nil {
		return errors.New("a URL that cannot be parsed")
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	switch u.Scheme {
	case "amqp", "amqps":
		var conn *amqp.Connection
		if conn, err = amqp.DialConfig(raw, amqp.Config{Dial: amqp.DefaultDial(limit)}); err == nil {
			err = conn.Close()
		}
	case "postgres", "postgresql":
		var conn *pgx.Conn
		if conn, err = pgx.Connect(ctx, raw); err == nil {
			err = conn.Close(ctx)
		}
	default:
		err = errors.New("neither amqp:// nor postgres://")
	}
	if err != nil {
		return fmt.Errorf("%s: %s", u.Redacted(), strings.Join(strings.Fields(err.Error()), " "))
	}
	return nil
}

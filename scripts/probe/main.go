// Command probe reports whether a broker answers: it logs in at each of the given URLs,
// amqp:// or postgres://, and prints the first that lets it in. With -wait it goes on trying.
// It exits with 1 when none does, and says why on standard error.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/backoff"
)

const (
	attemptLimit = 5 * time.Second
	pause        = 500 * time.Millisecond
	sayEvery     = 10 * time.Second
)

func main() {
	wait := flag.Duration("wait", 0, "how long to go on trying")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	found, err := first(ctx, flag.Args(), *wait)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(found)
}

// first tries the URLs in turn, until one answers or wait is over.
func first(ctx context.Context, urls []string, wait time.Duration) (string, error) {
	begin := time.Now()
	said := begin
	for {
		var errs []error
		for _, u := range urls {
			err := try(ctx, u)
			if err == nil {
				return u, nil
			}
			errs = append(errs, err)
		}
		if time.Since(begin) >= wait || ctx.Err() != nil {
			return "", errors.Join(errs...)
		}
		if time.Since(said) >= sayEvery {
			said = time.Now()
			fmt.Fprintf(os.Stderr, "still waiting after %v: %v\n",
				time.Since(begin).Round(time.Second), errors.Join(errs...))
		}
		_ = backoff.Sleep(ctx, pause) // the end of ctx ends the loop
	}
}

// try logs in once. Its errors leave out the password.
func try(ctx context.Context, raw string) error {
	u, err := url.Parse(raw)
	if err != nil {
		return errors.New("a URL that cannot be parsed")
	}
	ctx, cancel := context.WithTimeout(ctx, attemptLimit)
	defer cancel()
	switch u.Scheme {
	case "amqp", "amqps":
		var conn *amqp.Connection
		if conn, err = amqp.DialConfig(raw, amqp.Config{Dial: amqp.DefaultDial(attemptLimit)}); err == nil {
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
		return fmt.Errorf("%s: %w", u.Redacted(), err)
	}
	return nil
}

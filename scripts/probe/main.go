// Command probe reports whether a broker answers: it logs in at each of the given URLs,
// amqp:// or postgres://, and prints the first that lets it in. With -wait it goes on trying.
// It exits with 1 when none does, and says why on standard error.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/signal"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
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
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
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
		err = tryAMQP(raw)
	case "postgres", "postgresql":
		err = tryPostgres(ctx, raw)
	default:
		err = errors.New("neither amqp:// nor postgres://")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", u.Redacted(), err)
	}
	return nil
}

func tryAMQP(u string) error {
	conn, err := amqp.DialConfig(u, amqp.Config{
		Dial: func(network, addr string) (net.Conn, error) {
			c, err := net.DialTimeout(network, addr, attemptLimit)
			if err != nil {
				return nil, err
			}
			return c, c.SetDeadline(time.Now().Add(attemptLimit)) // whatever listens there may never answer
		},
	})
	if err != nil {
		return err
	}
	return conn.Close()
}

func tryPostgres(ctx context.Context, u string) error {
	conn, err := pgx.Connect(ctx, u)
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

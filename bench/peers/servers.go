package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"
)

// servers are URLs. They can have passwords, so no error may contain them.
type servers struct {
	amqp, postgres string
}

func (s servers) pool(ctx context.Context, settings map[string]string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(s.postgres)
	if err != nil || s.postgres == "" {
		return nil, errors.New("PG_URL is not the URL of a PostgreSQL database")
	}
	config.MaxConns = concurrency + 4
	for name, value := range settings {
		config.ConnConfig.RuntimeParams[name] = value
	}
	return pgxpool.NewWithConfig(ctx, config)
}

func (s servers) dial() (*amqp.Connection, error) {
	if _, err := amqp.ParseURI(s.amqp); err != nil {
		return nil, errors.New("AMQP_URL is not the URL of a RabbitMQ server")
	}
	c, err := amqp.DialConfig(s.amqp, amqp.Config{Heartbeat: 30 * time.Second})
	if err != nil {
		return nil, fmt.Errorf("connect to RabbitMQ: %w", err)
	}
	return c, nil
}

// settle is how long a count may take to become the right one after the last message is done.
const settle = 10 * time.Second

// expect waits until count returns want, and fails if it does not.
func expect(ctx context.Context, name string, want int64, count func() (int64, error)) error {
	ctx, cancel := context.WithTimeout(ctx, settle)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		got, err := count()
		if err == nil && got == want {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%s: %d, want %d", name, got, want), err)
		}
	}
}

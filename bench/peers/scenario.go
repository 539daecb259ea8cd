package main

import (
	"context"
	"errors"
	"time"
)

// concurrency is the number of messages that each program handles at once.
const concurrency = 32

// A scenario is a program to measure.
type scenario struct {
	name, about string
	broker      bool // it uses RabbitMQ
	run         func(ctx context.Context, r *run) error
}

var scenarios = []scenario{
	{"outbox/pgx-by-hand", "RabbitMQ and a pgx transaction with the outbox row, sent after the commit", true, byHand(commitByHand)},
	{"outbox/pgx-pipelined", "the same, where begin and commit are sent with other statements", true, byHand(commitPipelined)},
	{"outbox/dual-write", "RabbitMQ and a pgx transaction, then a send: unsafe, nothing repeats it", true, dualWrite},
	{"outbox/watermill", "Watermill on RabbitMQ, and its SQL forwarder", true, runWatermill},
	{"outbox/river", "a River job that inserts the next one in its transaction", false, runRiver},
	{"outbox/tx-by-hand", "transactions with a business row and a row for a message", false, transactions(true)},
	{"outbox/tx-none", "the same without the row for a message", false, transactions(false)},
}

// A run is one run of a scenario.
type run struct {
	*meter
	*database
	*queues // nil without a broker
	total   int
}

// measure runs the scenario and returns the time of its messages after the warm-up.
func (s scenario) measure(ctx context.Context, servers servers, messages int) (took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	warmUp := max(concurrency, messages/10)
	r := &run{meter: newMeter(warmUp, messages), total: warmUp + messages}
	if r.database, err = openDatabase(ctx, servers); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, r.database.close()) }()
	if s.broker {
		if r.queues, err = openQueues(ctx, servers, r.total); err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, r.queues.close()) }()
	}
	if err := s.run(ctx, r); err != nil {
		return 0, err
	}
	return r.elapsed(), nil
}

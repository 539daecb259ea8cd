package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// received is a job that is worked.
type received order

func (received) Kind() string { return "received" }

// next is a job that a received one inserts. Its queue has no workers.
type next order

func (next) Kind() string                 { return "next" }
func (next) InsertOpts() river.InsertOpts { return river.InsertOpts{Queue: "next"} }

// jobs works received jobs: the business write, the insert of the next job and the completion are
// one transaction.
type jobs struct {
	river.WorkerDefaults[received]
	*run
}

func (j *jobs) Work(ctx context.Context, job *river.Job[received]) error {
	err := pgx.BeginFunc(ctx, j.pool, func(tx pgx.Tx) error {
		if err := charge(ctx, tx, order(job.Args)); err != nil {
			return err
		}
		if _, err := river.ClientFromContext[pgx.Tx](ctx).InsertTx(ctx, tx, next(job.Args), nil); err != nil {
			return err
		}
		_, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job)
		return err
	})
	if err == nil {
		j.done()
	}
	return err
}

// runRiver works jobs of River, which has no broker: jobs are rows, and so are the messages that
// they send.
func runRiver(ctx context.Context, r *run) error {
	driver, log := riverpgxv5.New(r.pool), slog.New(slog.DiscardHandler)
	migrations, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: log})
	if err != nil {
		return err
	}
	if _, err := migrations.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return fmt.Errorf("create River's tables: %w", err)
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &jobs{run: r})
	client, err := river.NewClient(driver, &river.Config{
		Logger: log, Workers: workers, SkipUnknownJobCheck: true,
		Queues:        map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: concurrency}},
		FetchCooldown: 2 * time.Millisecond, FetchPollInterval: 20 * time.Millisecond, // those of River's own bench command
	})
	if err != nil {
		return err
	}
	if err := r.insertJobs(ctx, client); err != nil {
		return fmt.Errorf("insert jobs: %w", err)
	}
	if err := client.Start(ctx); err != nil {
		return err
	}
	err = r.wait(ctx)
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	const completed = `SELECT count(*) FROM river_job WHERE kind = 'received' AND state = 'completed'`
	return errors.Join(err, client.Stop(stopping), r.expectCharges(ctx, r.total),
		r.expectRows(ctx, "completed jobs", r.total, completed),
		r.expectRows(ctx, "next jobs", r.total, `SELECT count(*) FROM river_job WHERE kind = 'next'`))
}

func (r *run) insertJobs(ctx context.Context, client *river.Client[pgx.Tx]) error {
	const batch = 1000
	for from := 0; from < r.total; from += batch {
		var params []river.InsertManyParams
		for i := from; i < min(from+batch, r.total); i++ {
			m, err := first(i)
			if err != nil {
				return err
			}
			o, err := decode(m.body)
			if err != nil {
				return err
			}
			params = append(params, river.InsertManyParams{Args: received(o)})
		}
		if _, err := client.InsertManyFast(ctx, params); err != nil {
			return err
		}
	}
	return nil
}

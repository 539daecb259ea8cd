package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/errorqueue"
	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

const outboxDrainHelp = `Send all messages in the outbox of an endpoint to the broker, before the outbox is switched off. Running instances
of the endpoint send them too; stop those that still use the outbox first, or they store more.

A message that the broker refuses, for example because its queue was deleted, moves to the error queue. A row that cannot
be read, for example because a newer version has written it, is reported and stays. If the broker is away, the command
waits for it; an interrupt ends the command and leaves the rest in the outbox.

The exit code is 0 only if the outbox is empty.`

// draining holds the flags of drain.
type draining struct {
	ofEndpoint
	errors string // the error queue
	asJSON bool
}

func (a *outboxCommands) outboxDrainCommand() *cobra.Command {
	var d draining
	cmd := &cobra.Command{
		Use:     "drain",
		Short:   "Send all messages in an outbox to the broker",
		Long:    outboxDrainHelp,
		Example: `  holdfast outbox drain --endpoint billing --database postgres://host/billing --transport amqp://host/shop`,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.drain(cmd.Context(), &d) },
	}
	d.flags(a.app, cmd)
	cmd.Flags().StringVar(&d.errors, "error", "error", "the error `queue`, for messages that the broker refuses")
	cmd.Flags().BoolVar(&d.asJSON, "json", false, "print JSON: one object at the end")
	return cmd
}

// drained is the result of drain.
type drained struct {
	Outbox     string      `json:"outbox"`
	Sent       int64       `json:"sent"`    // messages
	Refused    int64       `json:"refused"` // messages that moved to the error queue
	Left       int64       `json:"left"`    // rows
	Unreadable []storedRow `json:"unreadable,omitempty"`
}

func (a *outboxCommands) drain(ctx context.Context, d *draining) error {
	broker, err := a.target()
	if err != nil {
		return err
	}
	database, err := d.database(a.app)
	if err != nil {
		return err
	}
	e, err := endpoint.New(endpoint.Config{
		Name: d.endpoint, Transport: broker.Transport, Outbox: database.Transport, SendOnly: true, Logger: a.log,
		Recoverability: recoverability.Config{ErrorQueue: d.errors},
	})
	if err != nil {
		return usageError{err}
	}
	err = withTarget(ctx, a.app, database, programName, "count the messages of its queues", func(conn transport.Conn) error {
		out, err := a.drainUntilEmpty(ctx, e, conn, d.endpoint+outboxSuffix)
		if out == nil {
			return err
		}
		for _, r := range out.Unreadable {
			fmt.Fprintf(a.err, "not sent: row %s (%s): %s\n", r.Number, oneLine(r.ID, 200), oneLine(a.secretless(r.Unreadable), 1000))
		}
		if d.asJSON {
			return errors.Join(err, json.NewEncoder(a.out).Encode(out))
		}
		fmt.Fprintf(a.out, "%s of %s sent, %d moved to %s, rows left: %d\n", plural(int(out.Sent)), out.Outbox, out.Refused, d.errors, out.Left)
		return err
	})
	if err != nil {
		return fmt.Errorf("outbox drain: %w", err)
	}
	return nil
}

// drainUntilEmpty runs the endpoint until its outbox has no more rows that can be read. The result
// is nil if the endpoint could not run, or the outbox could not be inspected.
func (a *outboxCommands) drainUntilEmpty(
	ctx context.Context, e *endpoint.Endpoint, conn transport.Conn, queue string,
) (*drained, error) {
	running, stop := context.WithCancel(ctx)
	defer stop()
	group, running := errgroup.WithContext(running)
	group.Go(func() error { return e.Run(running) })
	if err := e.WaitReady(running); err != nil {
		stop()
		return nil, cmp.Or(group.Wait(), err)
	}
	out := &drained{Outbox: queue}
	err := a.awaitEmpty(running, e, conn, out)
	if h := e.Health().Outbox; h != nil {
		out.Sent, out.Refused = h.Sent, h.Refused
	}
	stop()
	if failed := group.Wait(); failed != nil {
		return out, failed
	}
	if err == nil && out.Left > 0 {
		err = fmt.Errorf("the outbox still has rows that cannot be read: %d", out.Left)
	}
	return out, err
}

// awaitEmpty waits until no row is left that can be read, and shows the progress every few seconds.
func (a *outboxCommands) awaitEmpty(
	ctx context.Context, e *endpoint.Endpoint, conn transport.Conn, out *drained,
) error {
	const (
		look  = 200 * time.Millisecond
		every = 2 * time.Second
	)
	tick := time.NewTicker(look)
	defer tick.Stop()
	shown, before := time.Now(), int64(-1)
	for {
		left, err := countRows(ctx, conn, out.Outbox)
		if err == nil {
			out.Left = left
		}
		if err == nil && left == 0 {
			return nil
		}
		if time.Since(shown) >= every {
			shown = time.Now()
			if h := e.Health(); h.Outbox != nil {
				fmt.Fprintf(a.err, "%s sent, %d moved to the error queue, rows left: %d\n", plural(int(h.Outbox.Sent)), h.Outbox.Refused, out.Left)
			}
			if err == nil && left == before {
				if done, err := unreadableOnly(ctx, conn, out); done || err != nil {
					return err
				}
			}
			before = left
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// countRows returns the number of rows in the outbox.
func countRows(ctx context.Context, conn transport.Conn, queue string) (int64, error) {
	inspector, ok := conn.(transport.Inspector)
	if !ok {
		return 0, errors.New("the database cannot count the messages of its queues")
	}
	stats, err := inspector.Inspect(ctx, queue)
	if err != nil {
		return 0, err
	}
	return max(0, stats[0].Ready) + max(0, stats[0].Unsettled) + max(0, stats[0].Delayed), nil
}

var errReadable = errors.New("a row can be read")

// unreadableOnly reports whether none of the rows that are left can be read, and adds them to out.
func unreadableOnly(ctx context.Context, conn transport.Conn, out *drained) (bool, error) {
	q := &errorqueue.Queue{Conn: conn, Name: out.Outbox}
	var found []storedRow
	err := q.Each(ctx, func(m *transport.Message, _ errorqueue.Entry) error {
		r := rowOf(m)
		if r.Unreadable == "" {
			return errReadable
		}
		found = append(found, r)
		return nil
	})
	switch {
	case errors.Is(err, errReadable):
		return false, nil
	case err != nil:
		return false, err
	}
	out.Unreadable, out.Left = found, int64(len(found))
	return true, nil
}

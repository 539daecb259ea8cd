package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/errorqueue"
)

const errorsRetryHelp = `Return messages to the queue that they failed in, as if they came for the first time: with
their id and body, without the headers that tell of the fault and count retries. A message
that fails again comes back to the error queue and is not retried twice by one command.

Each message leaves the error queue and arrives in the other one as a unit. Killed at any moment,
the command loses none and doubles none; run it again to go on. On RabbitMQ the unit is a
transaction that only a failure of the broker at the same moment may split; the message
passes through a queue "holdfast.return.QUEUE", which the command creates and leaves
there, empty. Azure Service Bus has no such unit: the one under way is sent first and removed
after, and is in both queues when the command is killed between the two.

What cannot be returned is reported and stays: when the queue is gone, when the headers do not
name one (see --to), or when the message cannot be read.`

// takingFlags is what the flags of retry and discard say.
type takingFlags struct {
	selecting
	errorqueue.Plan
	asJSON bool
}

func (f *takingFlags) flags(cmd *cobra.Command) {
	f.selecting.flags(cmd)
	f.needAll(cmd, cmd.Name())
	cmd.Flags().BoolVar(&f.DryRun, "dry-run", false, "say what would be done, and do nothing")
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print JSON: one object at the end")
}

func (a *app) errorsRetryCommand() *cobra.Command {
	var f takingFlags
	cmd := &cobra.Command{
		Use:   "retry [ID]...",
		Short: "Return messages to the queue that they failed in",
		Long:  errorsRetryHelp,
		Example: `  holdfast errors retry 0199a2f0-6f2b-7cc1-a4c5-4f1fd0c4c9a1 --transport sqlite:orders.db
  holdfast errors retry --type PlaceOrder --class timeout --dry-run
  holdfast errors retry --all --rate 100
  holdfast errors retry --endpoint old-sales --to sales`,
		RunE: func(cmd *cobra.Command, ids []string) error {
			if f.Rate < 0 {
				return usagef("--rate %v: must not be negative", f.Rate)
			}
			return a.takeErrors(cmd.Context(), &f, ids, (*errorqueue.Queue).Retry)
		},
	}
	f.flags(cmd)
	cmd.Flags().StringVar(&f.To, "to", "", "return to this `queue` instead")
	cmd.Flags().Float64Var(&f.Rate, "rate", 0, "`messages` a second at most; 0 is as fast as it goes")
	return cmd
}

type taker func(*errorqueue.Queue, context.Context, errorqueue.Plan) (errorqueue.Outcome, error)

// takeErrors retries or discards, and prints what came of it, also when it was broken off.
func (a *app) takeErrors(ctx context.Context, f *takingFlags, ids []string, take taker) error {
	f.Report = func(e errorqueue.Entry, err error) { a.report(f, e, err) }
	return a.onErrors(ctx, &f.selecting, ids, func(q *errorqueue.Queue) error {
		outcome, err := take(q, ctx, f.Plan)
		for i := range outcome.Failures {
			outcome.Failures[i].Error = a.secretless(outcome.Failures[i].Error)
		}
		printed := a.printOutcome(&outcome, f)
		return errors.Join(err, printed, left(&outcome))
	})
}

// report tells what was refused, and in a dry run what would be done. What was done is logged, as
// a record of who was meant by a filter.
func (a *app) report(f *takingFlags, e errorqueue.Entry, err error) {
	switch {
	case err != nil:
		fmt.Fprintf(a.err, "not %s: %s: %s\n", past(f.changes), oneLine(e.ID, 200), oneLine(a.secretless(err.Error()), 1000))
	case f.DryRun && !f.asJSON:
		fmt.Fprintf(a.out, "would %s %s %s %s\n", f.changes, oneLine(e.ID, 200), column(e.Type), column(e.Class))
	case f.DryRun:
	case f.changes == "retry":
		a.log.Info("message retried", "id", e.ID, "queue", cmp.Or(f.To, e.Queue))
	default:
		a.log.Info("message discarded", "id", e.ID)
	}
}

func (a *app) printOutcome(o *errorqueue.Outcome, f *takingFlags) error {
	if f.asJSON {
		return json.NewEncoder(a.out).Encode(o)
	}
	done := past(f.changes)
	if o.DryRun {
		done = "to be " + done
	}
	_, err := fmt.Fprintf(a.out, "%s of %s %s, %d left where they are\n", plural(o.Done), o.Queue, done, o.Refused)
	return err
}

func past(verb string) string {
	if verb == "retry" {
		return "retried"
	}
	return verb + "ed"
}

// left is an error when something that was meant has not been done.
func left(o *errorqueue.Outcome) error {
	switch {
	case len(o.Missing) > 0:
		return fmt.Errorf("no message with the id %s", strings.Join(o.Missing, ", "))
	case o.Refused > 0:
		return fmt.Errorf("%s left where they are", plural(o.Refused))
	}
	return nil
}

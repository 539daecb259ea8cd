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

const errorsRetryHelp = `Return messages to the queue that they failed in, with their id and body, without the headers of the
failure and the counts of retries. A message that fails again is moved to the error queue again, and is not retried twice
by one command.

Each message is moved as a unit on SQL transports: killed at any moment, the command loses none and doubles none. Run it
again to go on. RabbitMQ, Amazon SQS and Azure Service Bus have no such unit: the message is sent first and removed
after, and is in both queues when the command is killed between the two.

A message that cannot be returned is reported and stays: its queue does not exist, its headers do not name one (see
--to), or it cannot be decoded.`

// takingFlags holds the flags of retry and discard.
type takingFlags struct {
	selecting
	errorqueue.Plan
	asJSON bool
}

func (f *takingFlags) flags(cmd *cobra.Command) {
	f.selecting.flags(cmd)
	f.needAll(cmd, cmd.Name())
	cmd.Flags().BoolVar(&f.DryRun, "dry-run", false, "show what would be done, and do nothing")
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
	cmd.Flags().Float64Var(&f.Rate, "rate", 0, "`messages` a second at most; 0 is unlimited")
	return cmd
}

type taker func(*errorqueue.Queue, context.Context, errorqueue.Plan) (errorqueue.Outcome, error)

// takeErrors retries or discards, and prints the outcome, also after an error.
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

// report prints a message that was refused, and in a dry run one that would be taken. One that was taken is logged.
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
	_, err := fmt.Fprintf(a.out, "%s of %s %s, %d left in the queue\n", plural(o.Done), o.Queue, done, o.Refused)
	return err
}

func past(verb string) string {
	if verb == "retry" {
		return "retried"
	}
	return verb + "ed"
}

// left returns an error when a selected message was not taken.
func left(o *errorqueue.Outcome) error {
	switch {
	case len(o.Missing) > 0:
		return fmt.Errorf("no message with the id %s", strings.Join(o.Missing, ", "))
	case o.Refused > 0:
		return fmt.Errorf("%s left in the queue", plural(o.Refused))
	}
	return nil
}

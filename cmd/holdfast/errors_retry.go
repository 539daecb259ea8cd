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

A packed message, whose headers had no room beside those of the failure, is returned with the headers that it was sent
with. If the broker refuses these headers, the message is returned packed, and its endpoint restores it: an endpoint of a
version before packed messages cannot.

A message that cannot be returned is reported and stays: its queue does not exist, its headers do not name one (see
--to), or it cannot be decoded.`

func (a *app) errorsRetryCommand() *cobra.Command {
	return a.takeCommand(&taking{take: (*errorqueue.Queue).Retry}, &cobra.Command{
		Use:   "retry [ID]...",
		Short: "Return messages to the queue that they failed in",
		Long:  errorsRetryHelp,
		Example: `  holdfast errors retry 0199a2f0-6f2b-7cc1-a4c5-4f1fd0c4c9a1 --transport sqlite:orders.db
  holdfast errors retry --type PlaceOrder --class timeout --dry-run
  holdfast errors retry --all --rate 100
  holdfast errors retry --endpoint old-sales --to sales`,
	})
}

// taking holds the flags of a command that takes messages out of a queue, and what it does.
type taking struct {
	selecting
	errorqueue.Plan
	asJSON bool
	take   func(*errorqueue.Queue, context.Context, errorqueue.Plan) (errorqueue.Outcome, error)
}

// takeCommand completes a command that retries or discards failed messages.
func (a *app) takeCommand(t *taking, cmd *cobra.Command) *cobra.Command {
	flags := cmd.Flags()
	t.changes = cmd.Name()
	t.flags(cmd)
	t.outputFlags(cmd)
	flags.BoolVar(&t.all, "all", false, "all messages of the queue: required without ids, filters or --first; with ids, each message that has one of them")
	if t.changes == "retry" {
		flags.StringVar(&t.To, "to", "", "return to this `queue` instead")
		flags.Float64Var(&t.Rate, "rate", 0, "`messages` a second at most; 0 is unlimited")
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if t.Rate < 0 {
			return usagef("--rate %v: must not be negative", t.Rate)
		}
		if t.deadLetters {
			t.To = cmp.Or(t.To, args[0])
		}
		t.Every = t.all
		return a.takeErrors(cmd.Context(), t, args)
	}
	return cmd
}

func (t *taking) outputFlags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&t.DryRun, "dry-run", false, "show what would be done, and do nothing")
	cmd.Flags().BoolVar(&t.asJSON, "json", false, "print JSON: one object at the end")
}

// takeErrors retries or discards, and prints the outcome, also after an error. It returns an error
// when a selected message was not taken.
func (a *app) takeErrors(ctx context.Context, t *taking, args []string) error {
	return a.onErrors(ctx, &t.selecting, args, func(q *errorqueue.Queue) error { return a.takeFrom(ctx, t, q) })
}

// takeFrom is takeErrors for an open queue.
func (a *app) takeFrom(ctx context.Context, t *taking, q *errorqueue.Queue) error {
	t.Report = func(e errorqueue.Entry, err error) { a.report(t, e, err) }
	o, err := t.take(q, ctx, t.Plan)
	for i := range o.Failures {
		o.Failures[i].Error = a.secretless(o.Failures[i].Error)
	}
	if t.asJSON {
		err = errors.Join(err, json.NewEncoder(a.out).Encode(o))
	} else {
		done := past(t.changes)
		if o.DryRun {
			done = "to be " + done
		}
		fmt.Fprintf(a.out, "%s of %s %s, %d left in the queue\n", plural(o.Done), o.Queue, done, o.Refused)
	}
	switch {
	case len(o.Missing) > 0:
		err = errors.Join(err, fmt.Errorf("no message with the id %s", strings.Join(o.Missing, ", ")))
	case o.Refused > 0:
		err = errors.Join(err, fmt.Errorf("%s left in the queue", plural(o.Refused)))
	}
	return err
}

// report prints a refused message, and in a dry run a message that the command would take. A taken
// message is logged.
func (a *app) report(t *taking, e errorqueue.Entry, err error) {
	switch {
	case err != nil:
		fmt.Fprintf(a.err, "not %s: %s: %s\n", past(t.changes), oneLine(e.ID, 200), oneLine(a.secretless(err.Error()), 1000))
	case t.DryRun && !t.asJSON:
		fmt.Fprintf(a.out, "would %s %s %s %s\n", t.changes, oneLine(e.ID, 200), column(e.Type), column(e.Class))
	case t.DryRun:
	case t.changes == "retry":
		a.log.Info("message retried", "id", e.ID, "queue", cmp.Or(t.To, e.Queue))
	default:
		a.log.Info("message discarded", "id", e.ID)
	}
}

func past(verb string) string {
	if verb == "retry" {
		return "retried"
	}
	return verb + "ed"
}

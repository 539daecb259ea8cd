package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/transport"
)

const sagasDeleteHelp = `Delete an instance of a saga for good, with its state. Nothing is left to recognize late messages by: one that begins an
instance begins a new one, and another one fails as a message for an unknown instance, unless the saga has an OrElse.
The messages of its time-outs stay where they wait until they are due, and are ignored then, also by a new instance with
the same key.

It is for an instance that can never end by itself. Without --yes nothing is deleted: the instance is shown. An instance
of which a message is being handled stays, and the command fails.`

func (a *app) sagasDeleteCommand() *cobra.Command {
	var s sagaOf
	cmd := &cobra.Command{
		Use:     "delete SAGA KEY --yes",
		Short:   "Delete an instance of a saga for good",
		Long:    sagasDeleteHelp,
		Example: `  holdfast sagas delete orders 4711 --endpoint billing --database postgres://host/billing --yes`,
		Args:    cobra.ExactArgs(2),
	}
	s.flags(a, cmd)
	yes := cmd.Flags().Bool("yes", false, "delete it: required")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.onInstance(cmd.Context(), &s, args, func(db transport.StateInspector, r transport.Record) error {
			i, _, _ := instanceOf(r) // a damaged instance is deleted too
			if !*yes {
				fmt.Fprintf(a.out, "%s is %s, changed %s; bytes of state: %d; time-outs that wait: %d\n", keyText(i.Key), i.Status, when(i.Changed), i.Bytes, i.Timeouts)
				return usagef("nothing was deleted: confirm with --yes")
			}
			if err := db.RemoveRecord(cmd.Context(), r.ID); err != nil {
				return err
			}
			fmt.Fprintf(a.out, "%s deleted\n", keyText(i.Key))
			if i.Timeouts > 0 {
				fmt.Fprintf(a.out, "the messages of its time-outs, %d, stay where they wait, and are ignored when they are due\n", i.Timeouts)
			}
			return nil
		})
	}
	return cmd
}

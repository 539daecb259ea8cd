package main

import (
	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/errorqueue"
	"github.com/holdfast-go/holdfast/transport"
)

const outboxDiscardHelp = `Remove rows from an outbox for good: their messages are never sent, although what the handlers wrote with them is
committed. Rows are named by their ids or numbers, or by --all. A row that an instance is sending at the moment stays and
is reported.`

func (a *app) outboxDiscardCommand() *cobra.Command {
	var o ofEndpoint
	t := &taking{selecting: selecting{changes: "discard"}, take: (*errorqueue.Queue).Discard}
	cmd := &cobra.Command{
		Use:   "discard [ID]...",
		Short: "Remove rows from an outbox for good",
		Long:  outboxDiscardHelp,
		Example: `  holdfast outbox discard 0199a2f0-6f2b-7cc1-a4c5-4f1fd0c4c9a1 --endpoint billing --database postgres://host/billing
  holdfast outbox discard --all --endpoint billing --dry-run`,
		RunE: func(cmd *cobra.Command, ids []string) error {
			switch {
			case len(ids) == 0 && !t.all:
				return usagef("no rows are selected to discard: give ids, or --all for the whole outbox")
			case len(ids) > 0 && t.all:
				return usagef("--all selects the whole outbox: leave it out when ids are given")
			}
			return a.onOutbox(cmd.Context(), &o, ids, func(_ transport.Conn, q *errorqueue.Queue) error {
				return a.takeFrom(cmd.Context(), t, q)
			})
		},
	}
	o.flags(a, cmd)
	cmd.Flags().BoolVar(&t.all, "all", false, "all rows of the outbox: required without ids")
	t.outputFlags(cmd)
	return cmd
}

package main

import (
	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/errorqueue"
)

const errorsDiscardHelp = `Remove messages from an error queue for good. Export them first if they may be missed.`

func (a *app) errorsDiscardCommand() *cobra.Command {
	var f takingFlags
	cmd := &cobra.Command{
		Use:   "discard [ID]...",
		Short: "Remove messages from an error queue for good",
		Long:  errorsDiscardHelp,
		Example: `  holdfast errors discard 0199a2f0-6f2b-7cc1-a4c5-4f1fd0c4c9a1 --transport sqlite:orders.db
  holdfast errors discard --type Shop.Ping --until 2026-01-31 --dry-run
  holdfast errors discard --all`,
		RunE: func(cmd *cobra.Command, ids []string) error {
			return a.takeErrors(cmd.Context(), &f, ids, (*errorqueue.Queue).Discard)
		},
	}
	f.flags(cmd)
	return cmd
}

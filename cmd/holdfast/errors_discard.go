package main

import (
	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/errorqueue"
)

func (a *app) errorsDiscardCommand() *cobra.Command {
	return a.takeCommand(&taking{take: (*errorqueue.Queue).Discard}, &cobra.Command{
		Use:   "discard [ID]...",
		Short: "Remove messages from an error queue for good",
		Long:  "Remove messages from an error queue for good. Export them first if they may be missed.",
		Example: `  holdfast errors discard 0199a2f0-6f2b-7cc1-a4c5-4f1fd0c4c9a1 --transport sqlite:orders.db
  holdfast errors discard --type Shop.Ping --until 2026-01-31 --dry-run
  holdfast errors discard --all`,
	})
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/errorqueue"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

func (a *app) queuesCreateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "create NAME...",
		Short: "Create queues that are missing",
		Long: `Create queues that are missing. Those that exist are unchanged. All queues of an endpoint are created by
holdfast endpoint create.`,
		Example: "  holdfast queues create sales sales.quarantine error --transport postgres://host/shop",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			// The endpoint that they belong to is not known.
			err := with(cmd.Context(), a, "", "create queues", func(i transport.Installer) error {
				return i.Install(cmd.Context(), queuePlan(names...))
			})
			if err != nil {
				return fmt.Errorf("queues create: %w", err)
			}
			return nil
		},
	}
}

const queuesPeekHelp = `Show the first messages of a queue and leave them there, also those that are being handled or delayed.
With --json, one object per line with headers and body. On RabbitMQ each is delivered: see holdfast errors --help.`

func (a *app) queuesPeekCommand() *cobra.Command {
	var (
		first  int
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:     "peek NAME",
		Short:   "Show the first messages of a queue",
		Long:    queuesPeekHelp,
		Example: "  holdfast queues peek sales --first 3 --json --transport postgres://host/shop",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			if first < 1 {
				return usagef("--first %d: must be at least 1", first)
			}
			return a.peek(cmd.Context(), &selecting{queue: names[0], first: first}, asJSON)
		},
	}
	cmd.Flags().IntVar(&first, "first", 10, "how many `messages`")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON: one object per line")
	return cmd
}

func (a *app) peek(ctx context.Context, s *selecting, asJSON bool) error {
	return a.onErrors(ctx, s, nil, func(q *errorqueue.Queue) error {
		lines := json.NewEncoder(a.out)
		w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
		if !asJSON {
			fmt.Fprintln(w, "ID\tTYPE\tSENT\tBYTES")
		}
		err := q.Each(ctx, func(m *transport.Message, e errorqueue.Entry) error {
			if asJSON {
				return lines.Encode(errorqueue.RecordOf(m, e))
			}
			sent, _ := header.ParseTime(m.Headers.Get(header.TimeSent)) // zero without one
			fmt.Fprintf(w, "%s\t%s\t%s\t%d", column(e.ID), column(e.Type), when(sent), len(m.Body))
			if e.Undecodable != "" {
				fmt.Fprintf(w, "\tcannot be decoded: %s", column(a.secretless(e.Undecodable)))
			}
			fmt.Fprintln(w)
			return nil
		})
		return errors.Join(err, w.Flush())
	})
}

const queuesPurgeHelp = `Delete all messages of a queue; those that are being handled or delayed stay. Export them first if they may be
needed: holdfast errors export --queue NAME.`

func (a *app) queuesPurgeCommand() *cobra.Command {
	var f takingFlags
	cmd := &cobra.Command{
		Use:     "purge NAME --all",
		Short:   "Delete all messages of a queue",
		Long:    queuesPurgeHelp,
		Example: "  holdfast queues purge sales --all --transport postgres://host/shop",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			if f.queue = names[0]; !f.all {
				return usagef("purge deletes every message of %q: confirm with --all", f.queue)
			}
			return a.takeErrors(cmd.Context(), &f, nil, (*errorqueue.Queue).Purge)
		},
	}
	f.changes = "discard"
	cmd.Flags().BoolVar(&f.all, "all", false, "yes, all of them")
	cmd.Flags().BoolVar(&f.DryRun, "dry-run", false, "show what would be done, and do nothing")
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print JSON: one object at the end")
	return cmd
}

package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/errorqueue"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

const queuesHelp = `Show the messages of queues: those that are ready to be received, being handled, and delayed, and the age of
the oldest ready one. A count that the broker does not have is shown as "?", and as -1 in JSON.

Without names, all queues are shown that the transport can list. RabbitMQ lists none: name them.`

// queueCommands are the commands on queues.
type queueCommands struct {
	*app
	errors *errorCommands
}

func (a *queueCommands) queuesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "queues [NAME]...",
		Short: "Show how many messages queues hold",
		Long:  queuesHelp,
		Example: `  holdfast queues --transport sqlite:orders.db
  holdfast queues --transport amqp://guest:guest@localhost sales error --json`,
		Args: cobra.ArbitraryArgs,
	}
	asJSON := cmd.Flags().Bool("json", false, "print JSON: one array")
	cmd.RunE = func(cmd *cobra.Command, names []string) error { return a.queues(cmd.Context(), names, *asJSON) }
	a.add(cmd, a.queuesCreateCommand(), a.queuesPeekCommand(), a.queuesPurgeCommand())
	return cmd
}

func (a *queueCommands) queues(ctx context.Context, names []string, asJSON bool) error {
	target, err := a.target()
	if err != nil {
		return err
	}
	if len(names) == 0 && target.listsNot {
		return usagef("queues: %s cannot list its queues: name them, as in holdfast queues sales error", target.name)
	}
	stats := []transport.QueueStats{}
	err = with(ctx, a.app, programName, "count the messages of its queues", func(i transport.Inspector) error {
		found, err := i.Inspect(ctx, names...)
		stats = append(stats, found...)
		return err
	})
	if err != nil {
		return fmt.Errorf("queues: %w", err)
	}
	return a.show(asJSON, stats, func(w io.Writer) {
		if len(stats) == 0 {
			fmt.Fprintln(w, "there are no queues")
			return
		}
		fmt.Fprintln(w, "QUEUE\tREADY\tUNSETTLED\tDELAYED\tOLDEST")
		for _, s := range stats {
			age := "-"
			if s.Oldest > 0 {
				age = s.Oldest.Round(time.Millisecond).String()
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", s.Name, number(s.Ready), number(s.Unsettled), number(s.Delayed), age)
		}
	})
}

// number returns a count as text; it may be unknown.
func number(n int64) string {
	if n < 0 {
		return "?"
	}
	return strconv.FormatInt(n, 10)
}

func (a *queueCommands) queuesCreateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "create NAME...",
		Short: "Create queues that are missing",
		Long: `Create queues that are missing. Those that exist are unchanged. All queues of an endpoint are created by
holdfast endpoint create.`,
		Example: "  holdfast queues create sales sales.quarantine error --transport postgres://host/shop",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			// The endpoint that they belong to is not known.
			err := with(cmd.Context(), a.app, "", "create queues", func(i transport.Installer) error {
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

func (a *queueCommands) queuesPeekCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "peek NAME",
		Short:   "Show the first messages of a queue",
		Long:    queuesPeekHelp,
		Example: "  holdfast queues peek sales --first 3 --json --transport postgres://host/shop",
		Args:    cobra.ExactArgs(1),
	}
	first := cmd.Flags().Int("first", 10, "how many `messages`")
	asJSON := cmd.Flags().Bool("json", false, "print JSON: one object per line")
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		if *first < 1 {
			return usagef("--first %d: must be at least 1", *first)
		}
		s := &selecting{queue: names[0], first: *first}
		n, err := a.errors.list(cmd.Context(), s, nil, *asJSON, "ID\tTYPE\tSENT\tBYTES", a.peekRow)
		if err == nil && n == 0 && !*asJSON {
			fmt.Fprintf(a.out, "no messages in %s\n", s.queue)
		}
		return err
	}
	return cmd
}

func (a *queueCommands) peekRow(
	m *transport.Message, e errorqueue.Entry,
) (record any, row []string) {
	sent, _ := header.ParseTime(m.Headers.Get(header.TimeSent)) // zero without one
	row = []string{column(e.ID), column(e.Type), when(sent), strconv.Itoa(len(m.Body))}
	if e.Undecodable != "" {
		row = append(row, "cannot be decoded: "+column(a.secretless(e.Undecodable)))
	}
	return errorqueue.RecordOf(m, e), row
}

const queuesPurgeHelp = `Delete all messages of a queue; those that are being handled or delayed stay. Export them first if they may be
needed: holdfast errors export --queue NAME.`

func (a *queueCommands) queuesPurgeCommand() *cobra.Command {
	t := &taking{selecting: selecting{changes: "discard"}, take: (*errorqueue.Queue).Purge}
	cmd := &cobra.Command{
		Use:     "purge NAME --all",
		Short:   "Delete all messages of a queue",
		Long:    queuesPurgeHelp,
		Example: "  holdfast queues purge sales --all --transport postgres://host/shop",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			if t.queue = names[0]; !t.all {
				return usagef("purge deletes every message of %q: confirm with --all", t.queue)
			}
			return a.errors.takeErrors(cmd.Context(), t, nil)
		},
	}
	cmd.Flags().BoolVar(&t.all, "all", false, "yes, all of them")
	t.outputFlags(cmd)
	return cmd
}

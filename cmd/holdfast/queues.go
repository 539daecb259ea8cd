package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/transport"
)

const queuesHelp = `Show the messages of queues: those that are ready to be received, being handled, and delayed, and the age of
the oldest ready one. A count that the broker does not have is shown as "?", and as -1 in JSON.

Without names, all queues are shown that the transport can list. RabbitMQ lists none: name them.`

func (a *app) queuesCommand() *cobra.Command {
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

func (a *app) queues(ctx context.Context, names []string, asJSON bool) error {
	target, err := a.target()
	if err != nil {
		return err
	}
	if len(names) == 0 && target.listsNot {
		return usagef("queues: %s cannot list its queues: name them, as in holdfast queues sales error", target.name)
	}
	stats := []transport.QueueStats{}
	err = with(ctx, a, programName, "count the messages of its queues", func(i transport.Inspector) error {
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

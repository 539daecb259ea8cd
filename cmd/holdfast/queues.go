package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/transport"
)

const queuesHelp = `Show the messages of queues: those that are ready to be received, being handled, and delayed, and the age of
the oldest ready one. A count that the broker does not have is shown as "?", and as -1 in JSON.

Without names, all queues are shown that the transport can list. RabbitMQ lists none: name them.`

func (a *app) queuesCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "queues [NAME]...",
		Short: "Show how many messages queues hold",
		Long:  queuesHelp,
		Example: `  holdfast queues --transport sqlite:orders.db
  holdfast queues --transport amqp://guest:guest@localhost sales error --json`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, names []string) error {
			stats, err := a.queues(cmd.Context(), names)
			if err != nil {
				return err
			}
			return a.printQueues(stats, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON: one array")
	for _, sub := range []*cobra.Command{a.queuesCreateCommand(), a.queuesPeekCommand(), a.queuesPurgeCommand()} {
		a.prepare(sub)
		cmd.AddCommand(sub)
	}
	return cmd
}

func (a *app) queues(ctx context.Context, names []string) (stats []transport.QueueStats, err error) {
	target, err := a.target()
	if err != nil {
		return nil, err
	}
	if len(names) == 0 && target.listsNot {
		return nil, usagef("queues: %s cannot list its queues: name them, as in holdfast queues sales error", target.name)
	}
	err = with(ctx, a, programName, "count the messages of its queues", func(i transport.Inspector) (err error) {
		stats, err = i.Inspect(ctx, names...)
		return err
	})
	if err != nil {
		err = fmt.Errorf("queues: %w", err)
	}
	return stats, err
}

func (a *app) printQueues(stats []transport.QueueStats, asJSON bool) error {
	if asJSON {
		if stats == nil {
			stats = []transport.QueueStats{}
		}
		return json.NewEncoder(a.out).Encode(stats)
	}
	if len(stats) == 0 {
		fmt.Fprintln(a.out, "there are no queues")
		return nil
	}
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "QUEUE\tREADY\tUNSETTLED\tDELAYED\tOLDEST")
	for _, s := range stats {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", s.Name, number(s.Ready), number(s.Unsettled), number(s.Delayed), age(s.Oldest))
	}
	return w.Flush()
}

// number returns a count as text; it may be unknown.
func number(n int64) string {
	if n < 0 {
		return "?"
	}
	return strconv.FormatInt(n, 10)
}

func age(d time.Duration) string {
	if d <= 0 {
		return "-"
	}
	return d.Round(time.Millisecond).String()
}

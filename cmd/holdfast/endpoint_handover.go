package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/transport"
)

const handOverHelp = `Make the queue of an endpoint one of NServiceBus on PostgreSQL and SQL Server, so that an endpoint of NServiceBus
receives from it. NServiceBus ignores leases and delays in the queue. So the command fails while a message is leased, and
names the instances; it moves delayed messages to the table NAME.Delayed, where NServiceBus reads them; and it removes the
columns that NServiceBus's tables do not have, so that no Go instance receives from the queue any more, and Go endpoints
keep delayed messages for it at their own side. The ids of the rows get a unique index first.

Stop all instances of the endpoint before: an idle one has no leases. Other endpoints may go on sending. The command may be
interrupted, and repeated until it succeeds. At the end it lists other queues of the endpoint that still have messages,
such as its quarantine: NServiceBus does not receive from those. "holdfast endpoint create NAME --adopt" takes the queue
over again.

The time zone of the command's session has to be that of NServiceBus's sessions, in which it reads the times of delayed
messages: that of the server, unless an option of the URL or PGTZ sets another.`

func (a *app) endpointHandOverCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "hand-over NAME",
		Short:   "Hand the queue of an endpoint over to NServiceBus",
		Long:    handOverHelp,
		Example: "  holdfast endpoint hand-over sales --transport postgres://host/shop",
		Args:    oneEndpoint,
	}
	asJSON := cmd.Flags().Bool("json", false, "print JSON: one object")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		e := endpointSpec{name: args[0], errors: "-"}
		if err := e.check(0); err != nil {
			return err
		}
		err := with(cmd.Context(), a, e.name, "hand queues over to NServiceBus", func(h transport.HandOverer) error {
			done, err := h.HandOver(cmd.Context(), e.name, a.handOverProgress())
			if err != nil {
				return err
			}
			if done.Remaining == nil {
				done.Remaining = []transport.QueueStats{}
			}
			return a.show(*asJSON, done, func(w io.Writer) { printHandedOver(w, e.name, done) })
		})
		if err != nil {
			return fmt.Errorf("endpoint %q: %w", e.name, err)
		}
		return nil
	}
	return cmd
}

// handOverProgress returns the function that shows the progress on standard error every few
// seconds.
func (a *app) handOverProgress() func(transport.HandOverProgress) {
	const every = 2 * time.Second
	next := time.Now().Add(every)
	return func(p transport.HandOverProgress) {
		if now := time.Now(); now.After(next) {
			next = now.Add(every)
			fmt.Fprintf(a.err, "moved %d of %d delayed messages\n", p.Moved, p.Total)
		}
	}
}

func printHandedOver(w io.Writer, name string, done transport.HandedOver) {
	if done.Already && done.Moved == 0 {
		fmt.Fprintf(w, "%s: already handed over: the queue is one of NServiceBus\n", name)
	} else {
		fmt.Fprintf(w, "%s: the queue is one of NServiceBus; %d delayed messages were moved to %s.Delayed\n", name, done.Moved, name)
	}
	if len(done.Remaining) == 0 {
		return
	}
	fmt.Fprintln(w, "messages remain in these queues, from which NServiceBus does not receive:")
	for _, q := range done.Remaining {
		fmt.Fprintf(w, "  %s\t%d ready\t%d in flight\t%d delayed\n", q.Name, q.Ready, q.Unsettled, q.Delayed)
	}
}

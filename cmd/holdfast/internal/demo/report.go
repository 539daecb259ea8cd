package demo

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// report writes the closing table: all that was done on this file, and how fast this run was.
func report(out io.Writer, before, after tally, elapsed time.Duration) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "endpoint\tprocessed\tretried at once\tdelayed\tmoved to error\t")
	row := func(name string, c count) {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t\n", name, c.processed, c.retried, c.delayed, c.failed)
	}
	for _, name := range handling {
		row(name, after.by[name])
	}
	row("total", after.total())
	if err := w.Flush(); err != nil {
		return err
	}
	earlier := before.total().settled()
	handled := after.total().settled() - earlier
	if handled == 0 {
		return nil
	}
	fmt.Fprintf(out, "This run: %d messages in %.1f s, %.0f messages per second", handled,
		elapsed.Seconds(), float64(handled)/elapsed.Seconds())
	if earlier > 0 {
		fmt.Fprintf(out, "; earlier runs: %d messages", earlier)
	}
	_, err := fmt.Fprintln(out, ".")
	return err
}

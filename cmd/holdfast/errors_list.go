package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/errorqueue"
	"github.com/holdfast-go/holdfast/transport"
)

const errorsListHelp = `List the messages of an error queue, in its order: time, type and queue of the failure. With --json, one
object per line with the whole error text.`

func (a *app) errorsListCommand() *cobra.Command {
	var (
		s      selecting
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "list [ID]...",
		Short: "List messages of an error queue",
		Long:  errorsListHelp,
		Example: `  holdfast errors list --transport sqlite:orders.db
  holdfast errors list --type PlaceOrder --since 2h --text "connection refused"`,
		RunE: func(cmd *cobra.Command, ids []string) error { return a.listErrors(cmd.Context(), &s, ids, asJSON) },
	}
	s.flags(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON: one object per line")
	return cmd
}

func (a *app) listErrors(ctx context.Context, s *selecting, ids []string, asJSON bool) error {
	return a.onErrors(ctx, s, ids, func(q *errorqueue.Queue) error {
		if asJSON {
			lines := json.NewEncoder(a.out)
			return q.Each(ctx, func(_ *transport.Message, e errorqueue.Entry) error {
				e.Error = a.secretless(e.Error)
				return lines.Encode(e)
			})
		}
		t := table{app: a}
		if err := q.Each(ctx, t.row); err != nil {
			return err
		}
		return t.end(s)
	})
}

// table prints entries. Columns are aligned within a hundred rows.
type table struct {
	app  *app
	w    *tabwriter.Writer
	rows int
}

const tableRows = 100

func (t *table) row(_ *transport.Message, e errorqueue.Entry) error {
	if t.w == nil {
		t.w = tabwriter.NewWriter(t.app.out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t.w, "FAILED AT\tID\tCLASS\tTYPE\tQUEUE\tATTEMPTS\tERROR")
	}
	fmt.Fprintf(t.w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", when(e.FailedAt), column(e.ID), column(e.Class), column(e.Type),
		column(e.Queue), known(e.Attempts), column(t.app.secretless(cmp.Or(e.Error, e.Undecodable))))
	if t.rows++; t.rows%tableRows == 0 {
		return t.w.Flush()
	}
	return nil
}

func (t *table) end(s *selecting) error {
	if t.rows == 0 {
		fmt.Fprintf(t.app.out, "no messages in %s", s.queue)
		if !s.All() {
			fmt.Fprint(t.app.out, " that match")
		}
		fmt.Fprintln(t.app.out)
		return nil
	}
	if err := t.w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(t.app.out, plural(t.rows))
	return nil
}

func column(text string) string {
	const widest = 70
	return cmp.Or(oneLine(text, widest), "-")
}

func when(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02 15:04:05")
}

// known returns a number as text, "-" for none.
func known(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

func plural(n int) string {
	if n == 1 {
		return "1 message"
	}
	return strconv.Itoa(n) + " messages"
}

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/errorqueue"
	"github.com/holdfast-go/holdfast/transport"
)

const errorsListHelp = `List the messages of an error queue, in its order: time, type and queue of the failure. With --json, one
object per line with the whole error text.`

func (a *app) errorsListCommand() *cobra.Command {
	return a.listCommand(&selecting{}, &cobra.Command{
		Use:   "list [ID]...",
		Short: "List messages of an error queue",
		Long:  errorsListHelp,
		Example: `  holdfast errors list --transport sqlite:orders.db
  holdfast errors list --type PlaceOrder --since 2h --text "connection refused"`,
	})
}

// listCommand completes a command that lists failed messages.
func (a *app) listCommand(s *selecting, cmd *cobra.Command) *cobra.Command {
	s.flags(cmd)
	asJSON := cmd.Flags().Bool("json", false, "print JSON: one object per line")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		const header = "FAILED AT\tID\tCLASS\tTYPE\tQUEUE\tATTEMPTS\tERROR"
		n, err := a.list(cmd.Context(), s, args, *asJSON, header, func(_ *transport.Message, e errorqueue.Entry) (any, []string) {
			e.Error = a.secretless(e.Error)
			attempts := "-"
			if e.Attempts > 0 {
				attempts = strconv.Itoa(e.Attempts)
			}
			return e, []string{
				when(e.FailedAt), column(e.ID), column(e.Class), column(e.Type), column(e.Queue), attempts,
				column(a.secretless(cmp.Or(e.Error, e.Undecodable))),
			}
		})
		switch {
		case err != nil || *asJSON:
			return err
		case n > 0:
			fmt.Fprintln(a.out, plural(n))
		case s.All():
			fmt.Fprintf(a.out, "no messages in %s\n", s.queue)
		default:
			fmt.Fprintf(a.out, "no messages in %s that match\n", s.queue)
		}
		return nil
	}
	return cmd
}

// list prints the selected messages as JSON lines, or as a table whose columns are aligned within a
// hundred rows. It returns their number.
func (a *app) list(
	ctx context.Context, s *selecting, args []string, asJSON bool, header string,
	show func(*transport.Message, errorqueue.Entry) (record any, row []string),
) (n int, err error) {
	lines, w := json.NewEncoder(a.out), tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	err = a.onErrors(ctx, s, args, func(q *errorqueue.Queue) error {
		err := q.Each(ctx, func(m *transport.Message, e errorqueue.Entry) error {
			n++
			record, row := show(m, e)
			if asJSON {
				return lines.Encode(record)
			}
			if n == 1 {
				fmt.Fprintln(w, header)
			}
			fmt.Fprintln(w, strings.Join(row, "\t"))
			if n%100 == 0 {
				return w.Flush()
			}
			return nil
		})
		return errors.Join(err, w.Flush())
	})
	return n, err
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

func plural(n int) string {
	if n == 1 {
		return "1 message"
	}
	return strconv.Itoa(n) + " messages"
}

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/errorqueue"
	"github.com/holdfast-go/holdfast/transport"
)

const outboxListHelp = `List the rows of an outbox in their order: how long each is stored, how many messages it has, their destinations
and types, its size in bytes, and the name of a timer with the time at which it is due. Listing changes nothing. With --json, one object per line, with the messages of the row.`

func (a *app) outboxListCommand() *cobra.Command {
	var o ofEndpoint
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the rows of an outbox",
		Long:    outboxListHelp,
		Example: `  holdfast outbox list --endpoint billing --database postgres://host/billing --first 20`,
		Args:    cobra.NoArgs,
	}
	o.flags(a, cmd)
	first := cmd.Flags().Int("first", 0, "only the first `N` rows")
	asJSON := cmd.Flags().Bool("json", false, "print JSON: one object per line")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *first < 0 {
			return usagef("--first %d: must not be negative", *first)
		}
		return a.onOutbox(cmd.Context(), &o, nil, func(conn transport.Conn, q *errorqueue.Queue) error {
			q.Limit = *first
			n := 0
			lines, w := json.NewEncoder(a.out), tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
			err := q.Each(cmd.Context(), func(m *transport.Message, _ errorqueue.Entry) error {
				n++
				r := rowOf(m)
				if *asJSON {
					return lines.Encode(r)
				}
				if n == 1 {
					fmt.Fprintln(w, "ID\tNUMBER\tSTORED FOR\tMESSAGES\tTO\tTYPE\tBYTES\tTIMER")
				}
				fmt.Fprintln(w, strings.Join(r.columns(clockOf(conn)), "\t"))
				if n%100 == 0 {
					return w.Flush()
				}
				return nil
			})
			if err = errors.Join(err, w.Flush()); err == nil && n == 0 && !*asJSON {
				fmt.Fprintf(a.out, "no messages in %s\n", q.Name)
			}
			return err
		})
	}
	return cmd
}

// columns returns r as a line of the table.
func (r *storedRow) columns(now time.Time) []string {
	if r.Unreadable != "" {
		return []string{column(r.ID), r.Number, "-", "-", "-", "cannot be read: " + column(r.Unreadable), strconv.Itoa(r.Bytes), r.timer()}
	}
	var queues, types []string
	for _, m := range r.Messages {
		queue := m.Queue
		if queue == "" {
			queue = "(subscribers)"
		}
		queues = append(queues, queue)
		types = append(types, m.Types[:min(1, len(m.Types))]...)
	}
	return []string{
		column(r.ID), r.Number, now.Sub(r.StoredAt).Round(time.Millisecond).String(), strconv.Itoa(len(r.Messages)),
		column(distinct(queues)), column(distinct(types)), strconv.Itoa(r.Bytes), r.timer(),
	}
}

// timer returns the name of the timer that the row is, and when it is due; "-" for another row.
func (r *storedRow) timer() string {
	if r.Timer == "" {
		return "-"
	}
	if len(r.Messages) == 0 {
		return column(r.Timer)
	}
	return column(r.Timer + ", due " + when(r.Messages[0].Due))
}

// distinct returns the names, each once, in their order.
func distinct(names []string) string {
	var once []string
	for _, name := range names {
		if !slices.Contains(once, name) {
			once = append(once, name)
		}
	}
	return strings.Join(once, ", ")
}

// clockOf returns the time by the clock of the database, where the driver knows it.
func clockOf(conn transport.Conn) time.Time {
	if c, ok := conn.(transport.Clock); ok {
		return c.Now()
	}
	return time.Now()
}

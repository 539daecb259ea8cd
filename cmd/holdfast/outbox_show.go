package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/errorqueue"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

const outboxShowHelp = `Show the messages in a row of an outbox: destination, headers, properties, and the body as text or in hex. The
row is named by its id, or by its number, which the log of an endpoint has. With --json, one object with the bodies in
base64.`

func (a *app) outboxShowCommand() *cobra.Command {
	var o ofEndpoint
	cmd := &cobra.Command{
		Use:     "show ID",
		Short:   "Show the messages in a row of an outbox",
		Long:    outboxShowHelp,
		Example: `  holdfast outbox show 0199a2f0-6f2b-7cc1-a4c5-4f1fd0c4c9a1 --endpoint billing --database postgres://host/billing`,
		Args: func(_ *cobra.Command, ids []string) error {
			if len(ids) != 1 {
				return fmt.Errorf("want the id of one row, have %d", len(ids))
			}
			return nil
		},
	}
	o.flags(a, cmd)
	asJSON := cmd.Flags().Bool("json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, ids []string) error {
		return a.onOutbox(cmd.Context(), &o, ids, func(_ transport.Conn, q *errorqueue.Queue) error {
			shown := 0
			err := q.Each(cmd.Context(), func(m *transport.Message, _ errorqueue.Entry) error {
				shown++
				r := shownRow{storedRow: rowOf(m)}
				if r.Unreadable != "" {
					r.Body = m.Body
				}
				for _, m := range r.storedRow.Messages {
					r.Messages = append(r.Messages, shownMessage{m, m.message.Headers, m.message.Native, m.message.Body})
				}
				if *asJSON {
					return json.NewEncoder(a.out).Encode(r)
				}
				a.printRow(&r)
				return nil
			})
			if err == nil && shown == 0 {
				err = fmt.Errorf("no row with the id %q: it may have been sent meanwhile", ids[0])
			}
			return err
		})
	}
	return cmd
}

// shownRow is all of a row.
type shownRow struct {
	storedRow
	Messages []shownMessage `json:"messages"`
	Body     []byte         `json:"body,omitempty"` // of a row that cannot be read; base64 in JSON
}

// shownMessage is all of a message in a row.
type shownMessage struct {
	storedMessage
	Headers header.Map        `json:"headers"`
	Native  map[string]string `json:"native,omitempty"`
	Body    []byte            `json:"body"` // base64 in JSON
}

func (a *app) printRow(r *shownRow) {
	fmt.Fprintf(a.out, "%s  row %s  stored %s\n", oneLine(r.ID, 200), r.Number, when(r.StoredAt))
	if r.Timer != "" {
		fmt.Fprintf(a.out, "timer %s\n", oneLine(r.Timer, 2000))
	}
	if r.Unreadable != "" {
		a.section("cannot be read", r.Unreadable)
		a.body(r.Body)
	}
	for i, m := range r.Messages {
		destination := "to " + m.Queue
		if m.Queue == "" {
			destination = "published as " + strings.Join(m.Types, ", ")
		}
		if !m.Due.IsZero() {
			destination += ", due " + m.Due.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(a.out, "\nmessage %d: %s  %s\n", i+1, oneLine(m.ID, 200), oneLine(destination, 1000))
		a.section("headers", fields(maps.Collect(m.Headers.All())))
		a.section("broker's properties", fields(m.Native))
		a.body(m.Body)
	}
}

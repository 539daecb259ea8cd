package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/errorqueue"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/envelope"
	"github.com/holdfast-go/holdfast/internal/timer"
	"github.com/holdfast-go/holdfast/transport"
)

const outboxHelp = `Show and discard the messages in the outbox of an endpoint, and send them to the broker.

A row of the outbox NAME.outbox contains all messages that the handlers of one message have sent, or those of one send
outside handlers. The running instances of the endpoint send them by themselves, at once. If the broker is away, or
an instance was killed meanwhile, the rows stay until they can be sent: no command is needed to try again.

The count of rows, and of those that are being sent, is also shown by holdfast queues NAME.outbox.

Exit codes: 0 all done, 1 failed or some rows stayed in the outbox, 2 wrong usage, 130 interrupted.`

const outboxExample = `  holdfast outbox list --endpoint billing --database postgres://host/billing
  holdfast outbox show 0199a2f0-6f2b-7cc1-a4c5-4f1fd0c4c9a1 --endpoint billing
  holdfast outbox discard 0199a2f0-6f2b-7cc1-a4c5-4f1fd0c4c9a1 --endpoint billing
  holdfast outbox drain --endpoint billing --transport amqp://host/shop`

// outboxCommands are the commands on outboxes.
type outboxCommands struct {
	*app
	errors *errorCommands
}

func (a *outboxCommands) outboxCommand() *cobra.Command {
	return a.group(&cobra.Command{
		Use:     "outbox",
		Short:   "List, show, discard and send the messages in the outbox of an endpoint",
		Long:    outboxHelp,
		Example: outboxExample,
	}, a.outboxListCommand(), a.outboxShowCommand(), a.outboxDiscardCommand(), a.outboxDrainCommand())
}

// ofEndpoint holds the flag of an endpoint that has an outbox or an inbox.
type ofEndpoint struct{ endpoint string }

// flags adds the flags of the endpoint and its database.
func (o *ofEndpoint) flags(a *app, cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.endpoint, "endpoint", "", "`name` of the endpoint (required)")
	a.databaseFlag(cmd, "database", "the database, by its `URL`")
}

// database returns the database of the endpoint.
func (o *ofEndpoint) database(a *app) (target, error) {
	if o.endpoint == "" {
		return target{}, usagef("--endpoint is required")
	}
	t, err := a.outbox()
	if err != nil {
		return target{}, err
	}
	if t == nil {
		return target{}, usagef("no database: use --database or set %s", databaseVar)
	}
	return *t, nil
}

// storedRow is a row of an outbox.
type storedRow struct {
	ID string `json:"id"`
	// Number is that of the row in its table, as the log of an endpoint has it.
	Number     string          `json:"number"`
	StoredAt   time.Time       `json:"stored_at,omitzero"`
	Bytes      int             `json:"bytes"`
	Timer      string          `json:"timer,omitempty"` // its name, of a message that waits until it is due
	Messages   []storedMessage `json:"messages"`
	Unreadable string          `json:"unreadable,omitempty"` // why
}

// storedMessage is a message in a row.
type storedMessage struct {
	ID    string    `json:"id"`
	Queue string    `json:"queue,omitempty"` // empty for a published message
	Types []string  `json:"types,omitempty"`
	Due   time.Time `json:"due,omitzero"` // of a delayed message
	Bytes int       `json:"bytes"`

	message *transport.Message
}

// rowOf returns the row that is stored as m.
func rowOf(m *transport.Message) storedRow {
	r := storedRow{ID: m.ID, Number: m.NativeID, Bytes: len(m.Body), Messages: []storedMessage{}}
	if text := m.Headers.Get(header.HoldfastTimer); text != "" {
		r.Timer = text
		if name, err := timer.Parse(text); err == nil {
			r.Timer = name.String()
		}
	}
	e, err := envelope.Decode(m.Body)
	if err == nil {
		err = m.Undecodable
	}
	if err != nil {
		r.Unreadable = err.Error()
		return r
	}
	r.StoredAt = e.Encoded
	for _, op := range e.Ops {
		types := op.Types
		if entry := errorqueue.EntryOf(op.Message); len(types) == 0 && entry.Type != "" {
			types = []string{entry.Type}
		}
		r.Messages = append(r.Messages, storedMessage{op.Message.ID, op.Queue, types, op.At, len(op.Message.Body), op.Message})
	}
	return r
}

// onOutbox calls f with the rows of the outbox that have these ids or numbers; all rows without
// any.
func (a *outboxCommands) onOutbox(
	ctx context.Context, o *ofEndpoint, ids []string, f func(conn transport.Conn, q *errorqueue.Queue) error,
) error {
	t, err := o.database(a.app)
	if err != nil {
		return err
	}
	return withTarget(ctx, a.app, t, programName, "list messages", func(conn transport.Conn) error {
		q := &errorqueue.Queue{Conn: conn, Name: o.endpoint + outboxSuffix, Filter: errorqueue.Filter{IDs: ids}}
		q.Read = func(m *transport.Message) errorqueue.Entry {
			if slices.Contains(ids, m.NativeID) {
				return errorqueue.Entry{ID: m.NativeID}
			}
			return errorqueue.Entry{ID: m.ID}
		}
		if err := f(conn, q); err != nil {
			return fmt.Errorf("outbox %q: %w", q.Name, err)
		}
		return nil
	})
}

const outboxListHelp = `List the rows of an outbox in their order: how long each is stored, how many messages it has, their destinations
and types, its size in bytes, and the name of a timer with the time at which it is due. Listing changes nothing. With --json, one object per line, with the messages of the row.`

func (a *outboxCommands) outboxListCommand() *cobra.Command {
	var o ofEndpoint
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the rows of an outbox",
		Long:    outboxListHelp,
		Example: `  holdfast outbox list --endpoint billing --database postgres://host/billing --first 20`,
		Args:    cobra.NoArgs,
	}
	o.flags(a.app, cmd)
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

const outboxShowHelp = `Show the messages in a row of an outbox: destination, headers, properties, and the body as text or in hex. The
row is named by its id, or by its number, which the log of an endpoint has. With --json, one object with the bodies in
base64.`

func (a *outboxCommands) outboxShowCommand() *cobra.Command {
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
	o.flags(a.app, cmd)
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

func (a *outboxCommands) printRow(r *shownRow) {
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

const outboxDiscardHelp = `Remove rows from an outbox for good: their messages are never sent, although what the handlers wrote with them is
committed. Rows are named by their ids or numbers, or by --all. A row that an instance is sending at the moment stays and
is reported.`

func (a *outboxCommands) outboxDiscardCommand() *cobra.Command {
	var o ofEndpoint
	t := &taking{selecting: selecting{changes: "discard"}, take: (*errorqueue.Queue).Discard}
	cmd := &cobra.Command{
		Use:   "discard [ID]...",
		Short: "Remove rows from an outbox for good",
		Long:  outboxDiscardHelp,
		Example: `  holdfast outbox discard 0199a2f0-6f2b-7cc1-a4c5-4f1fd0c4c9a1 --endpoint billing --database postgres://host/billing
  holdfast outbox discard --all --endpoint billing --dry-run`,
		RunE: func(cmd *cobra.Command, ids []string) error {
			switch {
			case len(ids) == 0 && !t.all:
				return usagef("no rows are selected to discard: give ids, or --all for the whole outbox")
			case len(ids) > 0 && t.all:
				return usagef("--all selects the whole outbox: leave it out when ids are given")
			}
			return a.onOutbox(cmd.Context(), &o, ids, func(_ transport.Conn, q *errorqueue.Queue) error {
				return a.errors.takeFrom(cmd.Context(), t, q)
			})
		},
	}
	o.flags(a.app, cmd)
	cmd.Flags().BoolVar(&t.all, "all", false, "all rows of the outbox: required without ids")
	t.outputFlags(cmd)
	return cmd
}

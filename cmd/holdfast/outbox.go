package main

import (
	"context"
	"fmt"
	"slices"
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

func (a *app) outboxCommand() *cobra.Command {
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
func (a *app) onOutbox(
	ctx context.Context, o *ofEndpoint, ids []string, f func(conn transport.Conn, q *errorqueue.Queue) error,
) error {
	t, err := o.database(a)
	if err != nil {
		return err
	}
	return withTarget(ctx, a, t, programName, "list messages", func(conn transport.Conn) error {
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

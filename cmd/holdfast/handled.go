package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/internal/handledid"
	"github.com/holdfast-go/holdfast/transport"
)

const handledHelp = `Work with the inbox NAME.handled of an endpoint: the ids of the messages that it has handled, by which it
recognizes another delivery of a message. The inbox is in the database of the endpoint's outbox or, in the transaction
mode SendsAtomicWithReceive, in that of its queues.`

// handledCommands are the commands on inboxes.
type handledCommands struct{ *app }

func (a *handledCommands) handledCommand() *cobra.Command {
	return a.group(&cobra.Command{
		Use:   "handled",
		Short: "Show the size of an endpoint's inbox, and forget handled messages",
		Long:  handledHelp,
	}, a.handledShowCommand(), a.handledForgetCommand())
}

// recording is a database with inboxes.
type recording interface {
	transport.OutboxStore
	transport.InboxInspector
}

// onInbox calls f with the database and the name of the inbox.
func (a *handledCommands) onInbox(
	ctx context.Context, o *ofEndpoint, f func(recording, string) error,
) error {
	t, err := o.database(a.app)
	if err != nil {
		return err
	}
	return withTarget(ctx, a.app, t, programName, "record handled messages", func(conn recording) error {
		inbox := o.endpoint + inboxSuffix
		err := f(conn, inbox)
		if errors.Is(err, transport.ErrNoQueue) {
			err = fmt.Errorf("%w: holdfast endpoint create creates it", err)
		}
		if err != nil {
			return fmt.Errorf("inbox %q: %w", inbox, err)
		}
		return nil
	})
}

const handledForgetHelp = `Remove the ids of messages from an inbox, so that the messages are handled again when they are delivered again.
It is for a message in the error queue with the class same-id, whose sender gave it the id of another message: forget the
id, then return the message by holdfast errors retry. The arguments are ids of messages that the endpoint has received from
its own queue.

The exit code is 1 if an id was not in the inbox.`

func (a *handledCommands) handledForgetCommand() *cobra.Command {
	var o ofEndpoint
	cmd := &cobra.Command{
		Use:     "forget ID...",
		Short:   "Have messages handled again when they are delivered again",
		Long:    handledForgetHelp,
		Example: `  holdfast handled forget 0199a2f0-6f2b-7cc1-a4c5-4f1fd0c4c9a1 --endpoint billing --database postgres://host/billing`,
		Args:    cobra.MinimumNArgs(1),
	}
	o.flags(a.app, cmd)
	cmd.RunE = func(cmd *cobra.Command, ids []string) error {
		return a.onInbox(cmd.Context(), &o, func(db recording, inbox string) error {
			keys := make([]transport.HandledKey, len(ids))
			for i, id := range ids {
				keys[i].ID = handledid.Of(o.endpoint, id)
			}
			before, err := db.FindHandled(cmd.Context(), inbox, keys)
			if err != nil {
				return err
			}
			n, err := db.ForgetHandled(cmd.Context(), inbox, keys)
			if err != nil {
				return err
			}
			fmt.Fprintf(a.out, "%s forgotten\n", plural(n))
			var missing []string
			for i, state := range before {
				if state == transport.NotHandled {
					missing = append(missing, ids[i])
				}
			}
			if len(missing) > 0 {
				return fmt.Errorf("no message was handled with the id %s", strings.Join(missing, ", "))
			}
			return nil
		})
	}
	return cmd
}

const handledShowHelp = `Show the size of an inbox, the ids recorded within the last hour, the age of the oldest one, and the size that
the inbox grows to at the rate of the last hour with the given Config.Remember. Databases may estimate counts.`

func (a *handledCommands) handledShowCommand() *cobra.Command {
	var o ofEndpoint
	cmd := &cobra.Command{
		Use:     "show",
		Short:   "Show the size of an inbox",
		Long:    handledShowHelp,
		Example: `  holdfast handled show --endpoint billing --database postgres://host/billing --remember 72h`,
		Args:    cobra.NoArgs,
	}
	o.flags(a.app, cmd)
	remember := cmd.Flags().Duration("remember", 7*24*time.Hour, "Config.Remember of the endpoint")
	asJSON := cmd.Flags().Bool("json", false, "print JSON: one object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *remember <= 0 {
			return usagef("--remember %v: must be positive", *remember)
		}
		return a.onInbox(cmd.Context(), &o, func(db recording, inbox string) error {
			stats, err := db.InspectInbox(cmd.Context(), inbox)
			if err != nil {
				return err
			}
			s := inboxSize(stats, *remember)
			return a.show(*asJSON, s, func(w io.Writer) { s.print(w) })
		})
	}
	return cmd
}

// shownInbox is the size of an inbox, now and with ids of so long a time.
type shownInbox struct {
	Name     string        `json:"name"`
	Rows     int64         `json:"rows"`
	Bytes    int64         `json:"bytes"`
	LastHour int64         `json:"last_hour"`
	Oldest   time.Duration `json:"oldest_ns"`
	Remember time.Duration `json:"remember_ns"`
	// At the rate of the last hour.
	ExpectedRows  int64 `json:"expected_rows"`
	ExpectedBytes int64 `json:"expected_bytes"`
}

const (
	// bytesPerID is the size of an id with its indexes in a large inbox.
	bytesPerID = 125
	// fewIDs is the size of an inbox up to which the bytes of each say nothing, because most of the
	// table is overhead.
	fewIDs = 10_000
)

func inboxSize(stats transport.InboxStats, remember time.Duration) shownInbox {
	s := shownInbox{
		Name: stats.Name, Rows: stats.Rows, Bytes: stats.Bytes, LastHour: stats.LastHour, Oldest: stats.Oldest, Remember: remember,
	}
	each := float64(bytesPerID)
	if stats.Rows > fewIDs && stats.Bytes > 0 {
		each = float64(stats.Bytes) / float64(stats.Rows)
	}
	rows := float64(stats.LastHour) * remember.Hours()
	s.ExpectedRows, s.ExpectedBytes = int64(rows), int64(rows*each)
	return s
}

func (s shownInbox) print(w io.Writer) {
	row := func(name, format string, args ...any) { fmt.Fprintf(w, name+"\t"+format+"\n", args...) }
	row("inbox", "%s", s.Name)
	row("ids", "%d", s.Rows)
	row("size", "%s", bytesText(s.Bytes))
	row("recorded within the last hour", "%d", s.LastHour)
	row("oldest", "%s", s.Oldest.Round(time.Second))
	row("expected at this rate", "%d ids, %s, with Remember %v", s.ExpectedRows, bytesText(s.ExpectedBytes), s.Remember)
}

// bytesText returns a number of bytes for people.
func bytesText(n int64) string {
	const kilo, mega, giga = 1e3, 1e6, 1e9
	switch f := float64(n); {
	case f >= giga:
		return fmt.Sprintf("%.1f GB", f/giga)
	case f >= mega:
		return fmt.Sprintf("%.1f MB", f/mega)
	case f >= kilo:
		return fmt.Sprintf("%.1f kB", f/kilo)
	}
	return fmt.Sprintf("%d bytes", n)
}

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/errorqueue"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

const errorsHelp = `List and show the messages in an error queue, return them to the queue that they failed in, discard or
export them.

Filters select messages; a message has to match every kind of filter that is given, and one value of each. Messages that
the transport cannot decode are listed too, with the class "undecodable" unless their headers have another.

Listing changes nothing on SQL transports and Azure Service Bus. RabbitMQ delivers a message to show it: while a command
runs, the messages that it has listed are hidden from others, and on quorum queues before RabbitMQ 4.3 each listing
counts as a delivery. A message that was listed ten times is therefore put at the end of the queue as a fresh copy, well
before RabbitMQ 4 would drop it at its default delivery limit of 20. Give an error queue no policy with a lower limit: with
the management API the command reads the limit, and stays within it. Amazon SQS counts each listing, and Azure Service
Bus counts a delivery of the messages in front of one that is taken: the command refuses, with advice, where that would
use up the deliveries that a redrive policy or MaxDeliveryCount permits.

Exit codes: 0 all done, 1 failed or some messages stayed in the queue, 2 wrong usage, 130 interrupted: the current
message is finished, the others are unchanged.`

const errorsExample = `  holdfast errors list --transport sqlite:orders.db
  holdfast errors list --class timeout --since 2h --json
  holdfast errors show 0199a2f0-6f2b-7cc1-a4c5-4f1fd0c4c9a1
  holdfast errors retry --class timeout --first 1           # try one
  holdfast errors retry --class timeout --rate 50           # then the rest, 50 a second
  holdfast errors export --file errors.jsonl && holdfast errors discard --all`

// errorCommands are the commands on error queues.
type errorCommands struct{ *app }

func (a *errorCommands) errorsCommand() *cobra.Command {
	return a.group(&cobra.Command{
		Use:     "errors",
		Short:   "List, show, retry, discard and export messages of an error queue",
		Long:    errorsHelp,
		Example: errorsExample,
	}, a.errorsListCommand(), a.errorsShowCommand(), a.errorsRetryCommand(), a.errorsDiscardCommand(), a.errorsExportCommand())
}

// selecting holds the flags that select messages.
type selecting struct {
	errorqueue.Filter
	queue        string
	since, until string
	first        int
	all          bool
	changes      string // the verb of a command that changes something
	deadLetters  bool   // the queue is the dead-letter queue of the first argument
}

func (s *selecting) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	if !s.deadLetters {
		flags.StringVar(&s.queue, "queue", "error", "the error `queue`")
	}
	flags.StringArrayVar(&s.Classes, "class", nil, "error `class`, or its Go type where there is no class; may be repeated")
	flags.StringArrayVar(&s.Types, "type", nil, "message `type`: its full name, or the part after the last dot; may be repeated")
	flags.StringArrayVar(&s.Endpoints, "endpoint", nil, "`name` of the endpoint that it failed in; may be repeated")
	flags.StringArrayVar(&s.Queues, "failed-queue", nil, "`queue` that it failed in; may be repeated")
	flags.StringVar(&s.since, "since", "", "failed at or after this `time`: 2006-01-02T15:04:05Z, 2006-01-02, or ago, such as 90m")
	flags.StringVar(&s.until, "until", "", "failed before this `time`")
	flags.StringVar(&s.Text, "text", "", "`text` in the error or its stack, without regard to case")
	flags.IntVar(&s.first, "first", 0, "only the first `N` that match")
}

// parse reads times and checks the selection. It refuses to select every message by accident.
func (s *selecting) parse(ids []string, now time.Time) (err error) {
	s.IDs = ids
	if s.first < 0 {
		return usagef("--first %d: must not be negative", s.first)
	}
	if s.Since, err = moment("--since", s.since, now); err != nil {
		return err
	}
	if s.Until, err = moment("--until", s.until, now); err != nil {
		return err
	}
	switch unfiltered := s.All(); {
	case s.changes == "":
	case unfiltered && s.first == 0 && !s.all:
		return usagef("no messages are selected to %s: give ids, filters or --first N, or --all for the whole queue", s.changes)
	case !unfiltered && s.all && len(ids) == 0:
		return usagef("--all selects the whole queue: leave it out when filters are given")
	}
	return nil
}

// moment parses a time, or a duration before now.
func moment(flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil {
		return now.Add(-ago), nil
	}
	for _, form := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.ParseInLocation(form, text, time.UTC); err == nil {
			return t, nil
		}
	}
	return time.Time{}, usagef("%s %q: want 2006-01-02T15:04:05Z, 2006-01-02, or how long ago, such as 90m", flag, text)
}

// onErrors calls f with the queue of the flags. The arguments are ids, behind the queue of dead
// letters. The progress is shown on standard error every few seconds.
func (a *errorCommands) onErrors(
	ctx context.Context, s *selecting, args []string, f func(*errorqueue.Queue) error,
) error {
	if s.deadLetters {
		if err := a.only("asb", "sb", "endpoint=sb"); err != nil {
			return err
		}
		s.queue, args = args[0]+deadLetterQueue, args[1:]
	}
	if err := s.parse(args, time.Now()); err != nil {
		return err
	}
	const every = 5 * time.Second
	next := time.Now().Add(every)
	progress := func(seen int) {
		if now := time.Now(); now.After(next) {
			next = now.Add(every)
			fmt.Fprintf(a.err, "read %d messages so far\n", seen)
		}
	}
	return with(ctx, a.app, programName, "list messages", func(conn transport.Conn) error {
		if by, ok := conn.(transport.Addresser); ok { // one queue has one name in every output
			s.queue = by.ShortName(s.queue)
		}
		s.Failed = true
		q := &errorqueue.Queue{Conn: conn, Name: s.queue, Filter: s.Filter, Limit: s.first, Read: deadLetter, Progress: progress}
		if err := f(q); err != nil {
			return fmt.Errorf("queue %q: %w", s.queue, err)
		}
		return nil
	})
}

// oneLine returns text for a terminal, without control characters and with at most so many
// characters.
func oneLine(text string, most int) string {
	text = strings.Join(strings.Fields(printable(text)), " ")
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return text
}

// printable replaces the characters of a text that cannot be printed, except line ends and tabs, by
// spaces.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
}

const errorsListHelp = `List the messages of an error queue, in its order: time, type and queue of the failure. With --json, one
object per line with the whole error text.`

func (a *errorCommands) errorsListCommand() *cobra.Command {
	return a.listCommand(&selecting{}, &cobra.Command{
		Use:   "list [ID]...",
		Short: "List messages of an error queue",
		Long:  errorsListHelp,
		Example: `  holdfast errors list --transport sqlite:orders.db
  holdfast errors list --type PlaceOrder --since 2h --text "connection refused"`,
	})
}

// listCommand completes a command that lists failed messages.
func (a *errorCommands) listCommand(s *selecting, cmd *cobra.Command) *cobra.Command {
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
func (a *errorCommands) list(
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

const errorsShowHelp = `Show a whole message: its headers, the error with its stack, and the body, as text or in hex. With
--json, one object with the body in base64.`

func (a *errorCommands) errorsShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "show ID",
		Short:   "Show a message of an error queue whole",
		Long:    errorsShowHelp,
		Example: `  holdfast errors show 0199a2f0-6f2b-7cc1-a4c5-4f1fd0c4c9a1 --transport sqlite:orders.db`,
		Args: func(_ *cobra.Command, ids []string) error {
			if len(ids) != 1 {
				return fmt.Errorf("want the id of one message, have %d", len(ids))
			}
			return nil
		},
	}
	queue := cmd.Flags().String("queue", "error", "the error `queue`")
	asJSON := cmd.Flags().Bool("json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, ids []string) error {
		return a.showError(cmd.Context(), &selecting{queue: *queue}, ids, *asJSON)
	}
	return cmd
}

func (a *errorCommands) showError(
	ctx context.Context, s *selecting, ids []string, asJSON bool,
) error {
	return a.onErrors(ctx, s, ids, func(q *errorqueue.Queue) error {
		shown := 0
		err := q.Each(ctx, func(m *transport.Message, e errorqueue.Entry) error {
			shown++
			r := errorqueue.RecordOf(m, e)
			if asJSON {
				return json.NewEncoder(a.out).Encode(r)
			}
			a.printRecord(&r)
			return nil
		})
		if err == nil && shown == 0 {
			err = fmt.Errorf("no message with the id %q", ids[0])
		}
		return err
	})
}

func (a *errorCommands) printRecord(r *errorqueue.Record) {
	fmt.Fprintf(a.out, "%s  %s  failed %s in %s\n", oneLine(r.ID, 200), column(r.Type), when(r.FailedAt), column(r.Queue))
	if r.Undecodable != "" {
		a.section("cannot be decoded", r.Undecodable)
	}
	a.section("error "+r.Class, r.Error)
	a.section("stack", r.Headers.Get(header.ExceptionStackTrace))
	a.section("headers", fields(maps.Collect(r.Headers.All())))
	a.section("broker's properties", fields(r.Native))
	a.body(r.Body)
}

// fields returns a line for each field, by name, except the fields with a section of their own.
func fields(all map[string]string) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if name != header.ExceptionMessage && name != header.ExceptionStackTrace {
			fmt.Fprintf(&b, "%s: %s\n", name, strings.ReplaceAll(all[name], "\n", " "))
		}
	}
	return b.String()
}

const errorsRetryHelp = `Return messages to the queue that they failed in, with their id and body, without the headers of the
failure and the counts of retries. A message that fails again is moved to the error queue again, and is not retried twice
by one command.

Each message is moved as a unit on SQL transports: killed at any moment, the command loses none and doubles none. Run it
again to go on. RabbitMQ, Amazon SQS and Azure Service Bus have no such unit: the message is sent first and removed
after, and is in both queues when the command is killed between the two.

A packed message, whose headers had no room beside those of the failure, is returned with the headers that it was sent
with. If the broker refuses these headers, the message is returned packed, and its endpoint restores it: an endpoint of a
version before packed messages cannot.

A message that cannot be returned is reported and stays: its queue does not exist, its headers do not name one (see
--to), or it cannot be decoded.`

func (a *errorCommands) errorsRetryCommand() *cobra.Command {
	return a.takeCommand(&taking{take: (*errorqueue.Queue).Retry}, &cobra.Command{
		Use:   "retry [ID]...",
		Short: "Return messages to the queue that they failed in",
		Long:  errorsRetryHelp,
		Example: `  holdfast errors retry 0199a2f0-6f2b-7cc1-a4c5-4f1fd0c4c9a1 --transport sqlite:orders.db
  holdfast errors retry --type PlaceOrder --class timeout --dry-run
  holdfast errors retry --all --rate 100
  holdfast errors retry --endpoint old-sales --to sales`,
	})
}

// taking holds the flags of a command that takes messages out of a queue, and what it does.
type taking struct {
	selecting
	errorqueue.Plan
	asJSON bool
	take   func(*errorqueue.Queue, context.Context, errorqueue.Plan) (errorqueue.Outcome, error)
}

// takeCommand completes a command that retries or discards failed messages.
func (a *errorCommands) takeCommand(t *taking, cmd *cobra.Command) *cobra.Command {
	flags := cmd.Flags()
	t.changes = cmd.Name()
	t.flags(cmd)
	t.outputFlags(cmd)
	flags.BoolVar(&t.all, "all", false, "all messages of the queue: required without ids, filters or --first; with ids, each message that has one of them")
	if t.changes == "retry" {
		flags.StringVar(&t.To, "to", "", "return to this `queue` instead")
		flags.Float64Var(&t.Rate, "rate", 0, "`messages` a second at most; 0 is unlimited")
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if t.Rate < 0 {
			return usagef("--rate %v: must not be negative", t.Rate)
		}
		if t.deadLetters {
			t.To = cmp.Or(t.To, args[0])
		}
		t.Every = t.all
		return a.takeErrors(cmd.Context(), t, args)
	}
	return cmd
}

func (t *taking) outputFlags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&t.DryRun, "dry-run", false, "show what would be done, and do nothing")
	cmd.Flags().BoolVar(&t.asJSON, "json", false, "print JSON: one object at the end")
}

// takeErrors retries or discards, and prints the outcome, also after an error. It returns an error
// when a selected message was not taken.
func (a *errorCommands) takeErrors(ctx context.Context, t *taking, args []string) error {
	return a.onErrors(ctx, &t.selecting, args, func(q *errorqueue.Queue) error { return a.takeFrom(ctx, t, q) })
}

// takeFrom is takeErrors for an open queue.
func (a *errorCommands) takeFrom(ctx context.Context, t *taking, q *errorqueue.Queue) error {
	t.Report = func(e errorqueue.Entry, err error) { a.report(t, e, err) }
	o, err := t.take(q, ctx, t.Plan)
	for i := range o.Failures {
		o.Failures[i].Error = a.secretless(o.Failures[i].Error)
	}
	if t.asJSON {
		err = errors.Join(err, json.NewEncoder(a.out).Encode(o))
	} else {
		done := past(t.changes)
		if o.DryRun {
			done = "to be " + done
		}
		fmt.Fprintf(a.out, "%s of %s %s, %d left in the queue\n", plural(o.Done), o.Queue, done, o.Refused)
	}
	switch {
	case len(o.Missing) > 0:
		err = errors.Join(err, fmt.Errorf("no message with the id %s", strings.Join(o.Missing, ", ")))
	case o.Refused > 0:
		err = errors.Join(err, fmt.Errorf("%s left in the queue", plural(o.Refused)))
	}
	return err
}

// report prints a refused message, and in a dry run a message that the command would take. A taken
// message is logged.
func (a *errorCommands) report(t *taking, e errorqueue.Entry, err error) {
	switch {
	case err != nil:
		fmt.Fprintf(a.err, "not %s: %s: %s\n", past(t.changes), oneLine(e.ID, 200), oneLine(a.secretless(err.Error()), 1000))
	case t.DryRun && !t.asJSON:
		fmt.Fprintf(a.out, "would %s %s %s %s\n", t.changes, oneLine(e.ID, 200), column(e.Type), column(e.Class))
	case t.DryRun:
	case t.changes == "retry":
		a.log.Info("message retried", "id", e.ID, "queue", cmp.Or(t.To, e.Queue))
	default:
		a.log.Info("message discarded", "id", e.ID)
	}
}

func past(verb string) string {
	if verb == "retry" {
		return "retried"
	}
	return verb + "ed"
}

func (a *errorCommands) errorsDiscardCommand() *cobra.Command {
	return a.takeCommand(&taking{take: (*errorqueue.Queue).Discard}, &cobra.Command{
		Use:   "discard [ID]...",
		Short: "Remove messages from an error queue for good",
		Long:  "Remove messages from an error queue for good. Export them first if they may be missed.",
		Example: `  holdfast errors discard 0199a2f0-6f2b-7cc1-a4c5-4f1fd0c4c9a1 --transport sqlite:orders.db
  holdfast errors discard --type Shop.Ping --until 2026-01-31 --dry-run
  holdfast errors discard --all`,
	})
}

const errorsExportHelp = `Write whole messages, one JSON object per line: the fields of list, all headers, the broker's
properties, and the body in base64. They stay in the queue. Nothing is redacted: a header with a password is in the file.`

func (a *errorCommands) errorsExportCommand() *cobra.Command {
	var s selecting
	cmd := &cobra.Command{
		Use:   "export [ID]...",
		Short: "Write messages of an error queue as JSON lines",
		Long:  errorsExportHelp,
		Example: `  holdfast errors export --transport sqlite:orders.db --file errors.jsonl
  holdfast errors export --class undecodable | jq -r .body | base64 -d`,
	}
	s.flags(cmd)
	file := cmd.Flags().String("file", "-", "new `file` to write; - is standard output")
	cmd.RunE = func(cmd *cobra.Command, ids []string) error { return a.exportErrors(cmd.Context(), &s, ids, *file) }
	return cmd
}

func (a *errorCommands) exportErrors(
	ctx context.Context, s *selecting, ids []string, file string,
) error {
	return a.onErrors(ctx, s, ids, func(q *errorqueue.Queue) (err error) {
		out := a.out
		if file != "-" {
			f, failed := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if failed != nil {
				return failed
			}
			defer func() { err = errors.Join(err, f.Close()) }()
			out = f
		}
		lines, n := json.NewEncoder(out), 0
		err = q.Each(ctx, func(m *transport.Message, e errorqueue.Entry) error {
			n++
			return lines.Encode(errorqueue.RecordOf(m, e))
		})
		fmt.Fprintf(a.err, "%s exported\n", plural(n))
		return err
	})
}

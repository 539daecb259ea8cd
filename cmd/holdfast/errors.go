package main

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/errorqueue"
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

func (a *app) errorsCommand() *cobra.Command {
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
func (a *app) onErrors(ctx context.Context, s *selecting, args []string, f func(*errorqueue.Queue) error) error {
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
	return with(ctx, a, programName, "list messages", func(conn transport.Conn) error {
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

// secretless returns text without passwords.
func (a *app) secretless(text string) string {
	return redact(redact(text, a.transportURL()), a.databaseURL())
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

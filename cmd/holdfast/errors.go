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

const errorsHelp = `Look after the messages that failed for good: list and show them, return them to the
queue that they failed in, discard or export them.

Filters narrow down what is meant; a message has to fit all kinds that are given, and one
value of each. Messages that the transport cannot decode are listed too, of the class
"undecodable" unless their headers say more.

Looking changes nothing on SQL transports and Azure Service Bus. RabbitMQ has to hand a message
out to show it: while a command runs, what it has looked at is hidden from others, and on quorum
queues before RabbitMQ 4.3 each look counts as a hand-out. A message looked at ten times is therefore
put at the end of the queue as a fresh copy, well before RabbitMQ 4 would drop it at its
default delivery limit of 20. Give an error queue no policy with a lower limit.

Exit codes: 0 all done, 1 failed or some messages were left where they are, 2 wrong usage,
130 interrupted: what was under way is finished, the rest is as it was.`

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

// selecting is what the flags say of the messages that are meant.
type selecting struct {
	errorqueue.Filter
	queue        string
	since, until string
	first        int
	all          bool
	changes      string                                    // the verb of a command that changes something
	read         func(*transport.Message) errorqueue.Entry // nil for what the headers tell
}

func (s *selecting) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.queue, "queue", "error", "the error `queue`")
	s.filters(cmd)
}

// filters are the flags that narrow down what is meant.
func (s *selecting) filters(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVar(&s.Classes, "class", nil, "error `class`, or its Go type where there is no class; may be repeated")
	flags.StringArrayVar(&s.Types, "type", nil, "message `type`: its full name, or the part after the last dot; may be repeated")
	flags.StringArrayVar(&s.Endpoints, "endpoint", nil, "`name` of the endpoint that it failed in; may be repeated")
	flags.StringArrayVar(&s.Queues, "failed-queue", nil, "`queue` that it failed in; may be repeated")
	flags.StringVar(&s.since, "since", "", "failed at or after this `time`: 2006-01-02T15:04:05Z, 2006-01-02, or ago, such as 90m")
	flags.StringVar(&s.until, "until", "", "failed before this `time`")
	flags.StringVar(&s.Text, "text", "", "`text` in the error or its stack, without regard to case")
	flags.IntVar(&s.first, "first", 0, "only the first `N` of those that fit")
}

// needAll adds what a command that changes something has to be told when it means every message.
func (s *selecting) needAll(cmd *cobra.Command, verb string) {
	s.changes = verb
	cmd.Flags().BoolVar(&s.all, "all", false, "all messages of the queue: required where nothing else says which")
}

// parse reads what is not a plain value.
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
	return s.confirm()
}

// confirm refuses to mean every message by accident.
func (s *selecting) confirm() error {
	switch unfiltered := s.All(); {
	case s.changes == "":
	case unfiltered && s.first == 0 && !s.all:
		return usagef("nothing says which messages to %s: give ids, filters or --first N, or --all for the whole queue", s.changes)
	case !unfiltered && s.all:
		return usagef("--all means the whole queue: leave it out where ids or filters are given")
	}
	return nil
}

// moment is a time that is given as such or as how long ago it was.
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

// onErrors runs f with the error queue that the flags name.
func (a *app) onErrors(ctx context.Context, s *selecting, ids []string, f func(*errorqueue.Queue) error) error {
	if err := s.parse(ids, time.Now()); err != nil {
		return err
	}
	return with(ctx, a, programName, "list messages", func(conn transport.Conn) error {
		err := f(&errorqueue.Queue{
			Conn: conn, Name: s.queue, Filter: s.Filter, Limit: s.first, Read: s.read, Progress: a.progress(),
		})
		if err != nil {
			return fmt.Errorf("queue %q: %w", s.queue, err)
		}
		return nil
	})
}

// progress tells on standard error now and then how far a long command has come.
func (a *app) progress() func(seen int) {
	const every = 5 * time.Second
	next := time.Now().Add(every)
	return func(seen int) {
		if now := time.Now(); now.After(next) {
			next = now.Add(every)
			fmt.Fprintf(a.err, "looked at %d messages so far\n", seen)
		}
	}
}

// secretless is text without passwords.
func (a *app) secretless(text string) string { return redact(text, a.transportURL()) }

// oneLine is text for a terminal: what would move the cursor or colour the screen becomes a
// space, and what is longer than most an ellipsis.
func oneLine(text string, most int) string {
	text = strings.Join(strings.Fields(printable(text)), " ")
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return text
}

// printable leaves line ends and tabs in a text, and of the rest what can be printed.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
}

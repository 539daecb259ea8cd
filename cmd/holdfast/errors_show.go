package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/errorqueue"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

const errorsShowHelp = `Show a whole message: its headers, the error with its stack, and the body, as text or in hex. With
--json, one object with the body in base64.`

func (a *app) errorsShowCommand() *cobra.Command {
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

func (a *app) showError(ctx context.Context, s *selecting, ids []string, asJSON bool) error {
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

func (a *app) printRecord(r *errorqueue.Record) {
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

// body prints the body of a message.
func (a *app) body(b []byte) {
	text := string(b)
	if !utf8.Valid(b) || strings.ContainsRune(text, 0) {
		text = hex.Dump(b)
	}
	a.section(fmt.Sprintf("body, %d bytes", len(b)), text)
}

// section prints a text below its title, unless there is none.
func (a *app) section(title, text string) {
	if text = strings.TrimRight(printable(a.secretless(text)), "\n"); text != "" {
		fmt.Fprintf(a.out, "\n%s:\n  %s\n", printable(title), strings.ReplaceAll(text, "\n", "\n  "))
	}
}

// fields returns a line for each field, by name, without those that have a section of their own.
func fields(all map[string]string) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if name != header.ExceptionMessage && name != header.ExceptionStackTrace {
			fmt.Fprintf(&b, "%s: %s\n", name, strings.ReplaceAll(all[name], "\n", " "))
		}
	}
	return b.String()
}

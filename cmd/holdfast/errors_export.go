package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/errorqueue"
	"github.com/holdfast-go/holdfast/transport"
)

const errorsExportHelp = `Write whole messages, one JSON object per line: the fields of list, all headers, the broker's
properties, and the body in base64. They stay in the queue. Nothing is redacted: a header with a password is in the file.`

func (a *app) errorsExportCommand() *cobra.Command {
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

func (a *app) exportErrors(ctx context.Context, s *selecting, ids []string, file string) error {
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

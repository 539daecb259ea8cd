package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/transport"
)

const sagasListHelp = `List the instances of a saga in the order of their keys, as the database compares them: status, key, the time of the
last change, the number of changes, the version of the state and its size, and the number of time-outs that wait. Then
the counts of the saga, which databases may estimate. Listing changes nothing.

A list has --first instances; when there are more, the last line says how the next page is listed. With --json, one
object per line, and no counts. Ended instances are listed as long as Config.Remember says.`

func (a *app) sagasListCommand() *cobra.Command {
	var s sagaOf
	cmd := &cobra.Command{
		Use:   "list SAGA",
		Short: "List the instances of a saga",
		Long:  sagasListHelp,
		Example: `  holdfast sagas list orders --endpoint billing --database postgres://host/billing
  holdfast sagas list orders --endpoint billing --after 4711 --first 20`,
		Args: cobra.ExactArgs(1),
	}
	s.flags(a, cmd)
	first := cmd.Flags().Int("first", 100, "only the first `N` instances")
	after := cmd.Flags().String("after", "", "only instances with keys behind `KEY`")
	asJSON := cmd.Flags().Bool("json", false, "print JSON: one object per line")
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		if *first <= 0 {
			return usagef("--first %d: must be positive", *first)
		}
		if *after != "" {
			if err := checkKey(*after); err != nil {
				return err
			}
		}
		s.name = names[0]
		return a.onSaga(cmd.Context(), &s, func(db transport.StateInspector) error {
			stats, err := db.InspectRecords(cmd.Context(), s.kind())
			if err != nil {
				return err
			}
			l := instanceList{out: tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0), lines: json.NewEncoder(a.out), asJSON: *asJSON}
			more, last := true, *after
			for left := *first; more && left > 0; {
				const page = 200
				limit := min(left, page)
				records, err := db.Records(cmd.Context(), transport.RecordPage{Kind: s.kind(), After: last, Limit: limit})
				if err != nil {
					return err
				}
				for _, r := range records {
					if err := l.add(r); err != nil {
						return err
					}
					last = r.Name.Key
				}
				more, left = len(records) == limit, left-len(records)
			}
			if *asJSON {
				return nil
			}
			if err := l.out.Flush(); err != nil {
				return err
			}
			if l.n == 0 && *after == "" {
				fmt.Fprintf(a.out, "no instances of saga %s in endpoint %s: is its name right?\n", keyText(s.name), s.endpoint)
				return nil
			}
			fmt.Fprintf(a.out, "\n%d active, %d ended; oldest change of an active one: %v ago\n", stats.Active, stats.Ended, stats.Oldest)
			if more && l.n > 0 {
				fmt.Fprintf(a.out, "there may be more: list them with --after %q\n", last)
			}
			return nil
		})
	}
	return cmd
}

// instanceList prints instances.
type instanceList struct {
	out    *tabwriter.Writer
	lines  *json.Encoder
	asJSON bool
	n      int
}

func (l *instanceList) add(r transport.Record) error {
	i, _, err := instanceOf(r)
	version := strconv.Itoa(i.Version)
	if err != nil {
		version = "cannot be read"
	}
	if l.n++; l.asJSON {
		return l.lines.Encode(i)
	}
	if l.n == 1 {
		fmt.Fprintln(l.out, "STATUS\tKEY\tCHANGED\tCHANGES\tVERSION\tBYTES\tTIME-OUTS")
	}
	fmt.Fprintln(l.out, strings.Join([]string{
		i.Status, keyText(i.Key), when(i.Changed), strconv.FormatInt(i.Changes, 10), version,
		strconv.Itoa(i.Bytes), strconv.Itoa(i.Timeouts),
	}, "\t"))
	return nil
}

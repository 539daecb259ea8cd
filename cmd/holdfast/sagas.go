package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/saga"
	"github.com/holdfast-go/holdfast/transport"
)

const sagasHelp = `List, show and delete the instances of the sagas of an endpoint. They are in the database of the endpoint's outbox or, in
the transaction mode SendsAtomicWithReceive, in that of its queues.

A saga has the name that the program gave it. An instance is named by its key or by its id. The messages that it sends have
the id in the header NServiceBus.OriginatingSagaId, and its time-outs and the replies to it in NServiceBus.SagaId.

Exit codes: 0 done, 1 failed or no such instance, 2 wrong usage, 130 interrupted.`

// sagaCommands are the commands on instances of sagas.
type sagaCommands struct{ *app }

func (a *sagaCommands) sagasCommand() *cobra.Command {
	return a.group(&cobra.Command{
		Use:   "sagas",
		Short: "List, show and delete the instances of an endpoint's sagas",
		Long:  sagasHelp,
		Example: `  holdfast sagas list orders --endpoint billing --database postgres://host/billing
  holdfast sagas show orders 4711 --endpoint billing
  holdfast sagas delete orders 4711 --endpoint billing --yes`,
	}, a.sagasListCommand(), a.sagasShowCommand(), a.sagasDeleteCommand())
}

// sagaOf is a saga of an endpoint.
type sagaOf struct {
	ofEndpoint
	name string
}

func (s *sagaOf) kind() string { return stateful.KindOf(s.endpoint, s.name) }

// onSaga calls f with the database of a saga.
func (a *sagaCommands) onSaga(
	ctx context.Context, s *sagaOf, f func(transport.StateInspector) error,
) error {
	if s.name == "" || !utf8.ValidString(s.name) || strings.Contains(s.name, "@") {
		return usagef("%q is no name of a saga: write the name that the program gives it, without @", s.name)
	}
	t, err := s.database(a.app)
	if err != nil {
		return err
	}
	return withTarget(ctx, a.app, t, programName, "store the state of sagas", func(db transport.StateInspector) error {
		err := f(db)
		switch {
		case errors.Is(err, transport.ErrNoQueue):
			err = fmt.Errorf("%w: the endpoint creates the table of states when it installs itself (Config.Install or "+
				"Endpoint.Install); check that the database is that of the endpoint", err)
		case errors.Is(err, transport.ErrConflict):
			err = fmt.Errorf("%w: a message of the instance is being handled: try again", err)
		}
		if err != nil {
			return fmt.Errorf("saga %q of endpoint %q: %w", s.name, s.endpoint, err)
		}
		return nil
	})
}

// onInstance calls f with the instance that the arguments SAGA and KEY name.
func (a *sagaCommands) onInstance(
	ctx context.Context, s *sagaOf, args []string, f func(transport.StateInspector, transport.Record) error,
) error {
	key := args[1]
	if err := checkKey(key); err != nil {
		return err
	}
	s.name = args[0]
	return a.onSaga(ctx, s, func(db transport.StateInspector) error {
		r, err := s.instance(ctx, db, key)
		if err != nil {
			return err
		}
		return f(db, r)
	})
}

// instance returns the instance with a key, or else that with an id. An error says what is known of
// the saga.
func (s *sagaOf) instance(
	ctx context.Context, db transport.StateInspector, key string,
) (transport.Record, error) {
	r, err := db.Record(ctx, saga.ID(s.endpoint, s.name, key))
	if !errors.Is(err, transport.ErrNoRecord) {
		return r, err
	}
	if id, ok := recordID(key); ok {
		r, err := db.Record(ctx, id)
		switch {
		case err == nil && r.Name.Kind == s.kind():
			return r, nil
		case err == nil:
			return r, fmt.Errorf("the id %s is that of %s, in another saga: %s", key, keyText(r.Name.Key), keyText(r.Name.Kind))
		case !errors.Is(err, transport.ErrNoRecord):
			return r, err
		}
	}
	stats, err := db.InspectRecords(ctx, s.kind())
	switch {
	case err != nil:
		return r, err
	case stats.Active+stats.Ended == 0:
		return r, errors.New("it has no instances at all: check the names of the saga and the endpoint, and the database")
	}
	return r, fmt.Errorf("no instance has the key or id %q: it ended longer ago than Config.Remember, or never began", key)
}

// recordID returns the id that a text is.
func recordID(text string) (id transport.RecordID, ok bool) {
	const digits = 2 * len(id)
	hexes := strings.ReplaceAll(text, "-", "")
	if len(hexes) != digits {
		return id, false
	}
	_, err := hex.Decode(id[:], []byte(hexes))
	return id, err == nil && uuid.Text(id) == strings.ToLower(text)
}

// checkKey returns an error for a text that is no key.
func checkKey(key string) error {
	const longest = 500
	switch {
	case key == "":
		return usagef("the key is empty")
	case len(key) > longest:
		return usagef("the key has %d bytes: at most %d are possible", len(key), longest)
	case !utf8.ValidString(key):
		return usagef("the key %q is not valid UTF-8", key)
	}
	return nil
}

// shownInstance is an instance of a saga.
type shownInstance struct {
	ID      string    `json:"id"` // as in the header of messages of the instance
	Key     string    `json:"key"`
	Status  string    `json:"status"`  // active or ended
	Changes int64     `json:"changes"` // the number of transactions that have saved it
	Version int       `json:"version"` // of the state, which Saga.Upgrade counts
	Started time.Time `json:"started"`
	Changed time.Time `json:"changed"`
	Bytes   int       `json:"bytes"` // of the state
	// Timeouts is the number of time-outs that wait.
	Timeouts int `json:"timeouts"`
}

// storedMeta is the part of a record that package saga stores beside the state.
type storedMeta struct {
	Version  int               `json:"version"`
	Timeouts map[string]string `json:"timeouts"`
}

// instanceOf returns what a record says. Its meta is read as far as it can be.
func instanceOf(r transport.Record) (shownInstance, storedMeta, error) {
	var meta storedMeta
	var err error
	if len(r.Meta) > 0 {
		err = json.Unmarshal(r.Meta, &meta)
	}
	status := "active"
	if r.Status == transport.RecordEnded {
		status = "ended"
	}
	return shownInstance{
		ID: uuid.Text(r.ID), Key: r.Name.Key, Status: status, Changes: r.Version, Version: meta.Version,
		Started: r.Started, Changed: r.Changed, Bytes: len(r.State), Timeouts: len(meta.Timeouts),
	}, meta, err
}

// keyText returns a key for a terminal: quoted where it has characters that would be lost.
func keyText(key string) string {
	if printable(key) != key || strings.Join(strings.Fields(key), " ") != key {
		return fmt.Sprintf("%q", key)
	}
	return key
}

const sagasListHelp = `List the instances of a saga in the order of their keys, as the database compares them: status, key, the time of the
last change, the number of changes, the version of the state and its size, and the number of time-outs that wait. Then
the counts of the saga, which databases may estimate. Listing changes nothing.

A list has --first instances; when there are more, the last line says how the next page is listed. With --json, one
object per line, and no counts. Ended instances are listed as long as Config.Remember says.`

func (a *sagaCommands) sagasListCommand() *cobra.Command {
	var s sagaOf
	cmd := &cobra.Command{
		Use:   "list SAGA",
		Short: "List the instances of a saga",
		Long:  sagasListHelp,
		Example: `  holdfast sagas list orders --endpoint billing --database postgres://host/billing
  holdfast sagas list orders --endpoint billing --after 4711 --first 20`,
		Args: cobra.ExactArgs(1),
	}
	s.flags(a.app, cmd)
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

const sagasShowHelp = `Show an instance of a saga: its id, which the messages that it sends have in the header NServiceBus.OriginatingSagaId, its
state, what the framework stores beside the state, and the names of the time-outs that wait. The times at which those
are due are with their messages, not here. An ended instance has no state. Showing changes nothing.

With --json, one object with the state and the meta as JSON.`

func (a *sagaCommands) sagasShowCommand() *cobra.Command {
	var s sagaOf
	cmd := &cobra.Command{
		Use:     "show SAGA KEY",
		Short:   "Show the state of an instance",
		Long:    sagasShowHelp,
		Example: `  holdfast sagas show orders 4711 --endpoint billing --database postgres://host/billing`,
		Args:    cobra.ExactArgs(2),
	}
	s.flags(a.app, cmd)
	asJSON := cmd.Flags().Bool("json", false, "print JSON: one object")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.onInstance(cmd.Context(), &s, args, func(_ transport.StateInspector, r transport.Record) error {
			i, meta, damaged := instanceOf(r)
			shown := struct {
				shownInstance
				Waiting []string        `json:"waiting,omitempty"` // names of time-outs
				State   json.RawMessage `json:"state,omitempty"`
				Meta    json.RawMessage `json:"meta,omitempty"`
			}{i, slices.Sorted(maps.Keys(meta.Timeouts)), r.State, r.Meta}
			if *asJSON {
				return json.NewEncoder(a.out).Encode(shown)
			}
			fmt.Fprintf(a.out, "%s  id %s  %s\n", keyText(i.Key), i.ID, i.Status)
			fmt.Fprintf(a.out, "began %s  changed %s  changes %d  version of the state %d\n",
				when(i.Started), when(i.Changed), i.Changes, i.Version)
			if damaged != nil {
				a.section("damaged", "what is stored beside the state cannot be read: "+damaged.Error())
			}
			a.section("time-outs that wait", strings.Join(shown.Waiting, "\n"))
			a.section(fmt.Sprintf("state, %d bytes", len(r.State)), string(r.State))
			a.section("meta", string(r.Meta))
			return nil
		})
	}
	return cmd
}

const sagasDeleteHelp = `Delete an instance of a saga for good, with its state. Nothing is left to recognize late messages by: one that begins an
instance begins a new one, and another one fails as a message for an unknown instance, unless the saga has an OrElse.
The messages of its time-outs stay where they wait until they are due, and are ignored then, also by a new instance with
the same key.

It is for an instance that can never end by itself. Without --yes nothing is deleted: the instance is shown. An instance
of which a message is being handled stays, and the command fails.`

func (a *sagaCommands) sagasDeleteCommand() *cobra.Command {
	var s sagaOf
	cmd := &cobra.Command{
		Use:     "delete SAGA KEY --yes",
		Short:   "Delete an instance of a saga for good",
		Long:    sagasDeleteHelp,
		Example: `  holdfast sagas delete orders 4711 --endpoint billing --database postgres://host/billing --yes`,
		Args:    cobra.ExactArgs(2),
	}
	s.flags(a.app, cmd)
	yes := cmd.Flags().Bool("yes", false, "delete it: required")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.onInstance(cmd.Context(), &s, args, func(db transport.StateInspector, r transport.Record) error {
			i, _, _ := instanceOf(r) // a damaged instance is deleted too
			if !*yes {
				fmt.Fprintf(a.out, "%s is %s, changed %s; bytes of state: %d; time-outs that wait: %d\n", keyText(i.Key), i.Status, when(i.Changed), i.Bytes, i.Timeouts)
				return usagef("nothing was deleted: confirm with --yes")
			}
			if err := db.RemoveRecord(cmd.Context(), r.ID); err != nil {
				return err
			}
			fmt.Fprintf(a.out, "%s deleted\n", keyText(i.Key))
			if i.Timeouts > 0 {
				fmt.Fprintf(a.out, "the messages of its time-outs, %d, stay where they wait, and are ignored when they are due\n", i.Timeouts)
			}
			return nil
		})
	}
	return cmd
}

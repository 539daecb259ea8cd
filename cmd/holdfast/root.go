package main

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// Exit codes. They are part of the help text.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

const rootHelp = `Work with message queues on every transport that Holdfast has.

A transport is given by --transport or the environment variable HOLDFAST_TRANSPORT:
` + transportHelp + `
Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted. On the first SIGINT or SIGTERM the program
finishes its current work; a second one ends it at once.`

// streams are the standard streams and the environment of a command.
type streams struct {
	in       io.Reader
	out, err io.Writer
	getenv   func(name string) string
}

// app is the state that all subcommands share.
type app struct {
	streams
	transport string // the --transport flag
	database  string // the flag with the URL of the outbox's database
	logLevel  string
	logFormat string
	log       *slog.Logger // not nil once a command runs
	started   bool         // a command runs: errors are no longer those of wrong usage
	parsed    *target      // the transport, once it was asked for
}

// usageError is wrong usage that a command has detected.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// run is main without the process: it returns the exit code.
func run(args []string, s streams) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // the next signal has its usual effect
	a := &app{streams: s}
	root := a.command()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	fmt.Fprintln(s.err, "holdfast:", a.secretless(err.Error()))
	switch _, usage := errors.AsType[usageError](err); {
	case !a.started || usage:
		return exitUsage
	case ctx.Err() != nil:
		return exitInterrupted
	}
	return exitFailed
}

// command is the command tree.
func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use:           "holdfast",
		Short:         "Work with message queues on every transport that Holdfast has",
		Long:          rootHelp,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetOut(a.out)
	root.SetErr(a.err)
	flags := root.PersistentFlags()
	flags.StringVar(&a.transport, "transport", "", "transport `URL`; $"+transportVar+" unless set")
	flags.StringVar(&a.logLevel, "log-level", "", "`level` of the log on standard error: debug, info, warn, error or off (default warn; off for demo)")
	flags.StringVar(&a.logFormat, "log-format", "console", "`format` of the log: console or json")
	failed, lab := &errorCommands{a}, &labCommands{a}
	brokers := &brokerCommands{a, failed}
	return a.group(
		root, lab.demoCommand(), (&sendCommands{a}).sendCommand(), (&queueCommands{a, failed}).queuesCommand(),
		(&sqlCommands{a}).sqlCommand(), failed.errorsCommand(), (&endpointCommands{a}).endpointCommand(),
		(&outboxCommands{a, failed}).outboxCommand(), (&handledCommands{a}).handledCommand(),
		(&sagaCommands{a}).sagasCommand(), (&jobCommands{a}).jobsCommand(), brokers.rabbitCommand(),
		brokers.asbCommand(), brokers.sqsCommand(), lab.benchCommand(), lab.tortureCommand(),
		lab.workerCommand(), a.versionCommand(),
	)
}

// group completes a command that only holds others.
func (a *app) group(cmd *cobra.Command, subs ...*cobra.Command) *cobra.Command {
	cmd.SuggestionsMinimumDistance = 2
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		text := fmt.Sprintf("unknown command %q", args[0])
		if similar := cmd.SuggestionsFor(args[0]); len(similar) > 0 {
			text += fmt.Sprintf(": did you mean %s?", strings.Join(similar, " or "))
		}
		return fmt.Errorf("%s (see %s --help)", text, cmd.CommandPath())
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	a.add(cmd, subs...)
	return cmd
}

// add adds subcommands, which set up the log first.
func (a *app) add(cmd *cobra.Command, subs ...*cobra.Command) {
	cmd.AddCommand(subs...)
	for _, sub := range subs {
		inner := sub.RunE
		sub.RunE = func(cmd *cobra.Command, args []string) (err error) {
			if a.logLevel == "" && cmd.Name() == "demo" { // its output is not to be mixed with the log
				a.logLevel = logOff
			}
			if a.log, err = newLogger(a.err, a.logLevel, a.logFormat); err != nil {
				return err
			}
			a.started = true
			return inner(cmd, args)
		}
	}
}

// show prints v as JSON, or an aligned table.
func (a *app) show(asJSON bool, v any, table func(w io.Writer)) error {
	if asJSON {
		return json.NewEncoder(a.out).Encode(v)
	}
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	table(w)
	return w.Flush()
}

// buildVersion describes the build.
type buildVersion struct {
	Module   string `json:"module"`
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Time     string `json:"time,omitempty"` // of the commit
	Modified bool   `json:"modified"`       // the source had changes not committed
	Go       string `json:"go"`
}

func (a *app) versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version, the commit and the Go release that built this program",
		Example: "  holdfast version --json",
		Args:    cobra.NoArgs,
	}
	asJSON := cmd.Flags().Bool("json", false, "print JSON")
	cmd.RunE = func(*cobra.Command, []string) error {
		info, ok := debug.ReadBuildInfo()
		if !ok {
			return errors.New("version: this program was built without module information")
		}
		v := versionOf(info)
		return a.show(*asJSON, v, func(w io.Writer) {
			fmt.Fprintf(w, "holdfast %s\n", v.Version)
			if v.Commit != "" {
				changed := ""
				if v.Modified {
					changed = " with changes"
				}
				fmt.Fprintf(w, "commit   %s%s (%s)\n", v.Commit, changed, v.Time)
			}
			fmt.Fprintf(w, "go       %s\n", v.Go)
		})
	}
	return cmd
}

func versionOf(info *debug.BuildInfo) buildVersion {
	v := buildVersion{Module: info.Main.Path, Version: info.Main.Version, Go: info.GoVersion}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Commit = s.Value
		case "vcs.time":
			v.Time = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}

// databaseVar names the environment variable with the URL of the outbox's database.
const databaseVar = "HOLDFAST_OUTBOX"

// The endpoint appends these to its name for the queue of its outbox, and for the inbox with the
// ids of handled messages.
const (
	outboxSuffix = ".outbox"
	inboxSuffix  = ".handled"
)

// databaseFlag adds the flag of that name with the URL of the outbox's database.
func (a *app) databaseFlag(cmd *cobra.Command, name, usage string) {
	cmd.Flags().StringVar(&a.database, name, "", usage+"; $"+databaseVar+" unless set")
}

// databaseURL is what the flag or the environment say.
func (a *app) databaseURL() string { return cmp.Or(a.database, a.getenv(databaseVar)) }

// outbox returns the database of the outbox, or nil where the user named none.
func (a *app) outbox() (*target, error) {
	raw := a.databaseURL()
	if raw == "" {
		return nil, nil //nolint:nilnil // no outbox is no error
	}
	t, err := parseTransport(raw)
	if err != nil {
		return nil, usageError{fmt.Errorf("outbox: %w", err)}
	}
	if !t.isDatabase {
		return nil, usagef("outbox: %s is no database that handlers write to: use PostgreSQL, SQLite or SQL Server", t.name)
	}
	return &t, nil
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

// secretless returns text without passwords.
func (a *app) secretless(text string) string {
	return redact(redact(text, a.transportURL()), a.databaseURL())
}

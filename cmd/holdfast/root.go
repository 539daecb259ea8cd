package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/signal"
	"strings"
	"syscall"

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

// streams are the standard streams of a command.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// app is the state that all subcommands share.
type app struct {
	streams
	transport string // the --transport flag
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
	fmt.Fprintln(s.err, "holdfast:", redact(err.Error(), a.transportURL()))
	return a.exitCode(ctx, err)
}

func (a *app) exitCode(ctx context.Context, err error) int {
	var usage usageError
	switch {
	case !a.started || errors.As(err, &usage):
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
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	flags := root.PersistentFlags()
	flags.StringVar(&a.transport, "transport", "", "transport `URL`; $"+transportVar+" unless set")
	flags.StringVar(&a.logLevel, "log-level", "", "`level` of the log on standard error: debug, info, warn, error or off (default warn; off for demo)")
	flags.StringVar(&a.logFormat, "log-format", "console", "`format` of the log: console or json")
	return a.group(root, a.demoCommand(), a.sendCommand(), a.queuesCommand(), a.sqlCommand(), a.errorsCommand(), a.endpointCommand(), a.rabbitCommand(), a.asbCommand(), a.sqsCommand(),
		a.benchCommand(), a.tortureCommand(), a.workerCommand(), a.versionCommand())
}

// typos is the number of letters by which a suggested command may differ.
const typos = 2

// group is a command that only holds others.
func (a *app) group(cmd *cobra.Command, subs ...*cobra.Command) *cobra.Command {
	cmd.Args, cmd.SuggestionsMinimumDistance = unknownCommand, typos
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	for _, sub := range subs {
		a.prepare(sub)
		cmd.AddCommand(sub)
	}
	return cmd
}

// prepare lets a subcommand set up the log first.
func (a *app) prepare(sub *cobra.Command) {
	inner := sub.RunE
	sub.RunE = func(cmd *cobra.Command, args []string) error {
		if a.logLevel == "" && cmd.Name() == "demo" { // its output is not to be mixed with the log
			a.logLevel = logOff
		}
		log, err := newLogger(a.err, a.logLevel, a.logFormat)
		if err != nil {
			return err
		}
		a.log, a.started = log, true
		return inner(cmd, args)
	}
}

func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("unknown command %q", args[0])
	if similar := cmd.SuggestionsFor(args[0]); len(similar) > 0 {
		text += fmt.Sprintf(": did you mean %s?", strings.Join(similar, " or "))
	}
	return fmt.Errorf("%s (see %s --help)", text, cmd.CommandPath())
}

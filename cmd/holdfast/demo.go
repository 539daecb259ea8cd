package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/demo"
)

const demoHelp = `Handle a file of orders through a small shop, on a durable queue in a file.

Every line of the input is sent to the endpoint sales, which validates it and publishes OrderPlaced to billing and
shipping. All of them run in this process. Some handlers fail once, some for a while and some always, by the id of the
order. Malformed lines are moved to the error queue without a retry.

Interrupt it or kill -9 it at any moment and run it again: it goes on. In the end, and with --verify, the ledger is
compared with the input: every line has exactly one ending, and the amounts add up.

The transport is sqlite:FILE (` + demoTransport + ` unless set) or memory:, which keeps nothing. The log is off unless
--log-level is set.`

const demoExample = `  holdfast demo --input examples/orders.jsonl
  holdfast demo --input examples/orders.jsonl --verify
  holdfast demo --input examples/orders.jsonl --reset`

// demoTransport is the default transport of the demo.
const demoTransport = "sqlite:holdfast-demo.db"

func (a *labCommands) demoCommand() *cobra.Command {
	var opts demo.Options
	var verify, reset bool
	cmd := &cobra.Command{
		Use:     "demo --input FILE",
		Short:   "Handle a file of orders, with failures, retries and restarts",
		Long:    demoHelp,
		Example: demoExample,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.demo(cmd.Context(), opts, verify, reset) },
	}
	flags := cmd.Flags()
	flags.StringVar(&opts.Input, "input", "", "`file` of orders, one JSON object a line (required)")
	flags.IntVar(&opts.Limit, "limit", 0, "use the first `N` lines only")
	flags.DurationVar(&opts.Work, "work", 25*time.Millisecond, "how long a handler pretends to work on a message")
	flags.BoolVar(&verify, "verify", false, "only prove that the totals of earlier runs add up")
	flags.BoolVar(&reset, "reset", false, "start over: remove the file with the queues first")
	cmd.MarkFlagsMutuallyExclusive("verify", "reset")
	return cmd
}

func (a *labCommands) demo(ctx context.Context, opts demo.Options, verify, reset bool) error {
	t, err := a.demoTarget()
	if err != nil {
		return err
	}
	opts.Path, opts.Out, opts.Log = file(t.Transport), a.out, a.log
	switch {
	case opts.Input == "":
		return usagef("--input is required")
	case opts.Limit < 0 || opts.Work < 0:
		return usagef("--limit and --work must not be negative")
	case opts.Path == "" && (verify || reset):
		return usagef("--verify and --reset need a file: memory: keeps nothing")
	}
	run := demo.Run
	switch {
	case verify:
		run = demo.Verify
	case reset:
		err = demo.Reset(ctx, opts)
	}
	if err == nil {
		err = run(ctx, opts)
	}
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	return nil
}

// demoTarget returns the transport of the demo, which has to be embedded in the process.
func (a *labCommands) demoTarget() (target, error) {
	if a.transportURL() == "" {
		return parseTransport(demoTransport)
	}
	t, err := a.target()
	if err == nil && t.scheme != "sqlite" && t.scheme != "memory" {
		err = usagef("the demo keeps its ledger in the transaction of its queues: use sqlite:FILE or memory: for --transport")
	}
	return t, err
}

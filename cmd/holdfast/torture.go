package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/testbed"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/torture"
)

const tortureHelp = `Test a transport by force. Worker processes handle numbered messages while they are killed at random (SIGKILL)
and by poison messages, which end the process that handles them by exit, SIGKILL, stack overflow, fatal error or panic.
Each worker that ends is started again. When the queues are empty, the ledger of the workers is compared with the
messages sent.

These invariants must hold, else the exit code is 1 and the ids of the messages are shown:
  nothing is lost
  every poison message is in the error queue, with class crash-loop
  no other message is there
  in atomic mode and with an outbox, nothing was handled more than once
  with an outbox, each row of a handler has sent one message, and no message was sent without its row

In atomic mode (SQL transports), a handler writes its row in the transaction of its message; in receiveonly mode it
writes to a file, and messages may be handled more than once, which is counted. With --outbox a handler writes its row
and sends a message in one transaction of that database, before it fails or is killed. Messages that arrive again under
their id are counted.

The queues of a run are torture-NAME, torture-NAME.error and torture-NAME.quarantine, and with an outbox
torture-NAME.receipts, and torture-NAME.outbox and .handled in its database. They are deleted afterwards unless an invariant did not hold or --keep is given. The same --seed has the same plan of kills, poison and failures.
Interrupted, the command kills its workers and deletes its queues.`

const tortureExample = `  holdfast torture --transport sqlite:torture.db
  holdfast torture --transport postgres://localhost/test --transactions atomic --seed 7
  holdfast torture --transport amqp://guest:guest@localhost --messages 10000 --poison 5 --json
  holdfast torture --transport amqp://guest:guest@localhost --outbox postgres://localhost/test
  holdfast torture --transport postgres://localhost/test --poison 0 --kill-every 0   # the control`

// torturing holds the flags of torture.
type torturing struct {
	torture.Options
	transactions string
	lease        time.Duration
	asJSON       bool
	verbose      bool
}

func (a *labCommands) tortureCommand() *cobra.Command {
	var o torturing
	cmd := &cobra.Command{
		Use:     "torture",
		Short:   "Test a transport: kill workers while they handle messages",
		Long:    tortureHelp,
		Example: tortureExample,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.torture(cmd.Context(), &o) },
	}
	flags := cmd.Flags()
	flags.StringVar(&o.transactions, "transactions", "receiveonly", "receiveonly or atomic")
	a.databaseFlag(cmd, "outbox", "the database of an outbox, by its `URL`; with receiveonly")
	flags.IntVar(&o.Messages, "messages", 1000, "how many messages")
	flags.IntVar(&o.Poison, "poison", 3, "how many of them kill their worker")
	flags.IntVar(&o.Workers, "workers", 3, "how many processes")
	flags.IntVar(&o.Concurrency, "concurrency", 16, "messages that each handles at once")
	flags.DurationVar(&o.Handler, "handler", 50*time.Millisecond, "how long a handler works on a message")
	flags.DurationVar(&o.KillEvery, "kill-every", 500*time.Millisecond, "mean time between two kills; 0 for none")
	flags.IntVar(&o.MaxKills, "max-kills", 0, "at most so many kills; 0 for no bound")
	flags.Float64Var(&o.Failures, "failures", 0.01, "`share` of messages whose first attempt fails with an error")
	flags.Uint64Var(&o.Seed, "seed", 0, "seed of the plan; random unless set")
	flags.DurationVar(&o.lease, "lease", 3*time.Second, "lease of messages, and so how long those of a killed worker wait, where the transport has leases")
	flags.DurationVar(&o.Timeout, "timeout", 10*time.Minute, "bound of the whole run")
	flags.BoolVar(&o.Keep, "keep", false, "keep queues and ledger")
	flags.BoolVar(&o.verbose, "verbose", false, "show the kills, and the standard error of the workers")
	flags.BoolVar(&o.asJSON, "json", false, "print JSON: one object")
	return cmd
}

func (a *labCommands) torture(ctx context.Context, o *torturing) error {
	t, err := a.prepareTorture(o)
	if err != nil {
		return err
	}
	removers := []func() error{removeIfNew(file(t.Transport)), removeIfNew(file(o.Outbox))}
	report, err := torture.Run(ctx, o.Options)
	for _, remove := range removers {
		if !o.Keep && (err != nil || report.OK()) {
			err = errors.Join(err, remove())
		}
	}
	switch {
	case errors.Is(err, torture.ErrNotOffered):
		return usageError{fmt.Errorf("--transactions atomic: %w", err)}
	case err != nil:
		return fmt.Errorf("torture: %w", err)
	}
	if !o.verbose {
		report.KillList = nil
	}
	err = a.printTorture(report, o.asJSON)
	if err == nil && !report.OK() {
		err = errors.New("torture: an invariant broke") // the report shows which one
	}
	return err
}

// prepareTorture completes the options for the transport.
func (a *labCommands) prepareTorture(o *torturing) (target, error) {
	t, err := a.target()
	if err != nil {
		return t, err
	}
	outbox, err := a.outbox()
	if err != nil {
		return t, err
	}
	switch o.transactions {
	case "atomic":
		o.Mode = torture.Atomic
	case "receiveonly":
	default:
		return t, usagef("--transactions %q: want receiveonly or atomic", o.transactions)
	}
	switch {
	case t.scheme == "memory":
		return t, usagef("memory: is visible to one process only, and there are several workers: use sqlite:FILE")
	case outbox != nil && outbox.scheme == "memory":
		return t, usagef("outbox: memory: is visible to one process only, and there are several workers: use sqlite:FILE")
	case outbox != nil && o.Mode == torture.Atomic:
		return t, usagef("--outbox: in atomic mode there is none: use --transactions receiveonly")
	case o.lease <= 0 || o.Timeout <= 0:
		return t, usagef("--lease and --timeout must be positive")
	}
	if o.Seed == 0 {
		o.Seed = 1 + rand.Uint64N(1e9)
	}
	if err := o.Check(); err != nil {
		return t, usageError{err}
	}
	program, err := os.Executable()
	if err != nil {
		return t, err
	}
	if outbox != nil {
		o.Mode = torture.Outbox
	}
	o.Subject = subject(t, outbox, o.lease)
	openTransactions(t.Transport, o.Concurrency)
	o.Progress, o.WorkerLog, o.Log = a.err, io.Discard, a.log
	if o.verbose {
		o.WorkerLog = a.err
	}
	o.Worker = func(ctx context.Context) *exec.Cmd {
		cmd := exec.CommandContext(ctx, program, workerName, "--lease", o.lease.String(), "--log-level", a.logLevel, "--log-format", a.logFormat)
		cmd.Env = append(os.Environ(), transportVar+"="+a.transportURL(), databaseVar+"="+a.databaseURL()) // other users see arguments
		return cmd
	}
	return t, nil
}

// subject returns what is tested, with that lease.
func subject(t target, outbox *target, lease time.Duration) torture.Subject {
	setLease(t.Transport, lease)
	if outbox == nil {
		return torture.Subject{Transport: t.Transport, Table: testbed.TableOf(t.Transport)}
	}
	setLease(outbox.Transport, lease)
	return torture.Subject{Transport: t.Transport, Outbox: outbox.Transport, Table: testbed.TableOf(outbox.Transport)}
}

const workerName = "torture-worker"

// workerCommand is the command of the workers of torture.
func (a *labCommands) workerCommand() *cobra.Command {
	var lease time.Duration
	cmd := &cobra.Command{
		Use:    workerName,
		Short:  "A worker of torture",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			t, err := a.target()
			if err != nil {
				return err
			}
			outbox, err := a.outbox()
			if err != nil {
				return err
			}
			return torture.Work(cmd.Context(), torture.Process{In: a.in, Out: a.out, Log: a.log}, subject(t, outbox, lease))
		},
	}
	cmd.Flags().DurationVar(&lease, "lease", 0, "lease of messages")
	return cmd
}

func (a *labCommands) printTorture(r *torture.Report, asJSON bool) error {
	return a.show(asJSON, r, func(w io.Writer) {
		row := func(name, format string, args ...any) { fmt.Fprintf(w, name+"\t"+format+"\n", args...) }
		row("sent", "%d", r.Sent)
		row("processed", "%d", r.Processed)
		row("lost", "%d", r.Lost)
		row("handled twice", "%d", r.HandledTwice)
		if s := r.Outbox; s != nil {
			row("rows with an outbox", "%d", s.Rows)
			row("messages sent", "%d, and %d copies of them", s.Arrived, s.ArrivedAgain)
			row("sent without a row", "%d", s.Ghosts)
			row("rows without a message", "%d", s.Missing)
		}
		row("poison parked", "%d", r.PoisonParked)
		row("innocents parked", "%d", r.InnocentsParked)
		var attempts []string // numbers of messages by starts of a handler
		for _, n := range slices.Sorted(maps.Keys(r.Attempts)) {
			attempts = append(attempts, fmt.Sprintf("%d × %d", r.Attempts[n], n))
		}
		row("attempts", "%s", strings.Join(attempts, ", "))
		row("restarts", "%d, of them %d after a kill", r.Restarts, r.Kills)
		row("plan", "%s of seed %d", r.Plan, r.Seed)
		row("time", "%.1f s", r.Seconds)
		for _, k := range r.KillList {
			row("kill", "worker %d after %v", k.Worker, k.At.Round(time.Millisecond))
		}
		for _, b := range r.Broken {
			row("BROKEN", "%s: %s", b.Invariant, strings.Join(b.Messages, " "))
		}
	})
}

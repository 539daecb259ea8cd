package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/schedule"
	"github.com/holdfast-go/holdfast/transport"
)

const jobsHelp = `List, show and cancel the jobs of an endpoint, and run, pause and resume its schedules. Both are in the database of the
endpoint's outbox or, in the transaction mode SendsAtomicWithReceive, in that of its queues.

The commands work while the endpoint runs, and while it does not. What an instance has to do, such as to run a schedule,
waits in the outbox NAME.outbox until one runs.

Exit codes: 0 done, 1 failed or no such job or schedule, 2 wrong usage, 130 interrupted.`

// jobCommands are the commands on jobs and schedules.
type jobCommands struct{ *app }

func (a *jobCommands) jobsCommand() *cobra.Command {
	return a.group(&cobra.Command{
		Use:   "jobs",
		Short: "List, show and cancel jobs of an endpoint, and run, pause and resume its schedules",
		Long:  jobsHelp,
		Example: `  holdfast jobs list --endpoint billing --database postgres://host/billing
  holdfast jobs show 0199a2f0-6f2b-7cc1-a4c5-4f1fd0c4c9a1 --endpoint billing
  holdfast jobs cancel 0199a2f0-6f2b-7cc1-a4c5-4f1fd0c4c9a1 --endpoint billing
  holdfast jobs pause nightly-report --endpoint billing`,
	}, a.jobsListCommand(), a.jobsShowCommand(), a.jobsCancelCommand(), a.jobsRunCommand(), a.jobsPauseCommand(), a.jobsResumeCommand())
}

// onJobs calls f with an inspector of the endpoint's schedules and jobs.
func (a *jobCommands) onJobs(
	ctx context.Context, o *ofEndpoint, f func(*schedule.Inspector) error,
) error {
	t, err := o.database(a.app)
	if err != nil {
		return err
	}
	return withTarget(ctx, a.app, t, programName, "store jobs", func(conn transport.Conn) error {
		inspector, err := schedule.Inspect(conn, o.endpoint)
		if err != nil {
			return err
		}
		return f(inspector)
	})
}

// checkIDs returns an error for ids of jobs, or names of schedules, that cannot be ones.
func checkIDs(_ *cobra.Command, ids []string) error {
	if len(ids) == 0 {
		return errors.New("nothing is selected: give at least one")
	}
	for _, id := range ids {
		if id == "" {
			return errors.New("one of the arguments is empty")
		}
	}
	return nil
}

// unknownSchedule returns an error for a schedule that the endpoint does not have, with those that
// it has.
func unknownSchedule(
	ctx context.Context, jobs *schedule.Inspector, o *ofEndpoint, name string,
) error {
	snapshot, err := jobs.Snapshot(ctx)
	if err != nil {
		return err
	}
	var known []string
	for _, s := range snapshot.Schedules {
		known = append(known, oneLine(s.Name, 200))
	}
	if len(known) == 0 {
		return fmt.Errorf("endpoint %q has no schedule %.200q, nor any other: check the endpoint and the database; a schedule is "+
			"known when an instance that has it has run", o.endpoint, name)
	}
	return fmt.Errorf("endpoint %q has no schedule %.200q: it has %s", o.endpoint, name, strings.Join(known, ", "))
}

// unknownJob returns an error for a job that the database does not have.
func unknownJob(o *ofEndpoint, id string) error {
	return fmt.Errorf("endpoint %q has no job %.100q: check the endpoint and the database; jobs that have ended are deleted after "+
		"schedule.Config.Keep, 30 days unless set", o.endpoint, id)
}

const jobsListHelp = `List the schedules of an endpoint by name: their state, their times, the time of the next occurrence, the outcome of the
last one, and how many occurrences were missed, skipped because another one had not ended, or due while the schedule was
paused. Then the jobs that have not ended, in the order of their ids, and their number, which databases may estimate.
Times are UTC. Listing changes nothing.

A list has --first jobs; when there are more, the last line says how the next page is listed. --ended lists the jobs that
have ended instead, as long as they are kept. With --json, one object.`

func (a *jobCommands) jobsListCommand() *cobra.Command {
	var o ofEndpoint
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the schedules and jobs of an endpoint",
		Long:  jobsListHelp,
		Example: `  holdfast jobs list --endpoint billing --database postgres://host/billing
  holdfast jobs list --endpoint billing --ended --first 20`,
		Args: cobra.NoArgs,
	}
	o.flags(a.app, cmd)
	ended := cmd.Flags().Bool("ended", false, "list the jobs that have ended")
	first := cmd.Flags().Int("first", schedule.MaxJobs, "only the first `N` jobs")
	after := cmd.Flags().String("after", "", "only jobs with ids behind `ID`")
	asJSON := cmd.Flags().Bool("json", false, "print JSON: one object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *first <= 0 {
			return usagef("--first %d: must be positive", *first)
		}
		return a.onJobs(cmd.Context(), &o, func(jobs *schedule.Inspector) error {
			snapshot, err := jobs.Snapshot(cmd.Context())
			if err != nil {
				return err
			}
			more := false
			if snapshot.Jobs, more, err = jobPages(cmd.Context(), jobs, *ended, *after, *first); err != nil {
				return err
			}
			var past []schedule.Job
			if len(snapshot.Schedules) == 0 && snapshot.Active == 0 {
				if past, err = jobs.Jobs(cmd.Context(), true, "", 1); err != nil {
					return err
				}
			}
			if len(snapshot.Schedules)+len(past) == 0 && snapshot.Active == 0 && !*asJSON {
				fmt.Fprintf(a.out, "no schedules and no jobs of endpoint %s: check its name and the database\n", o.endpoint)
				return nil
			}
			if err := a.show(*asJSON, snapshot, func(w io.Writer) { printSchedules(w, snapshot.Schedules) }); err != nil || *asJSON {
				return err
			}
			if err := a.show(false, nil, func(w io.Writer) { printJobs(w, snapshot.Jobs) }); err != nil {
				return err
			}
			fmt.Fprintf(a.out, "%d jobs that have not ended\n", snapshot.Active)
			if more {
				fmt.Fprintf(a.out, "there may be more: list them with --after %s\n", snapshot.Jobs[len(snapshot.Jobs)-1].ID)
			}
			return nil
		})
	}
	return cmd
}

// jobPages returns the first jobs behind an id, and reports whether there may be more.
func jobPages(
	ctx context.Context, jobs *schedule.Inspector, ended bool, after string, first int,
) (all []schedule.Job, more bool, err error) {
	const page = 200
	for len(all) < first {
		limit := min(first-len(all), page)
		next, err := jobs.Jobs(ctx, ended, after, limit)
		if err != nil {
			return nil, false, err
		}
		all = append(all, next...)
		if len(next) < limit {
			return all, false, nil
		}
		after = next[len(next)-1].ID
	}
	return all, true, nil
}

func printSchedules(w io.Writer, schedules []schedule.Info) {
	if len(schedules) == 0 {
		return
	}
	fmt.Fprintln(w, "SCHEDULE\tSTATE\tTIMES\tNEXT\tLAST\tMISSED\tSKIPPED\tPAUSED")
	for _, s := range schedules {
		last := "-"
		if s.Last.Status != "" {
			last = string(s.Last.Status) + " " + when(s.Last.Ended)
		}
		fmt.Fprintln(w, strings.Join([]string{
			column(s.Name), column(string(s.State)), column(s.Times), when(s.Next), last,
			strconv.Itoa(s.Missed), strconv.Itoa(s.Skipped), strconv.Itoa(s.Paused),
		}, "\t"))
	}
	fmt.Fprintln(w)
	for _, s := range schedules {
		if s.Warning != "" {
			fmt.Fprintf(w, "warning: %s: see holdfast jobs show\n\n", column(s.Warning))
		}
	}
}

func printJobs(w io.Writer, jobs []schedule.Job) {
	if len(jobs) == 0 {
		return
	}
	fmt.Fprintln(w, "JOB\tSTATUS\tTYPE\tSCHEDULE\tATTEMPT\tSINCE\tNEXT ATTEMPT\tLAST ERROR")
	for _, j := range jobs {
		fmt.Fprintln(w, strings.Join([]string{
			column(j.ID), column(string(j.Status)), column(j.Type), column(j.Schedule), attempts(j),
			when(since(j)), when(j.NextAttempt), column(j.LastError),
		}, "\t"))
	}
	fmt.Fprintln(w)
}

// since returns when a job ended, when its last attempt began, or when it was sent: the last of
// these.
func since(j schedule.Job) time.Time {
	switch {
	case !j.Ended.IsZero():
		return j.Ended
	case !j.Started.IsZero():
		return j.Started
	}
	return j.Created
}

// attempts returns the attempts of a job for people.
func attempts(j schedule.Job) string {
	switch {
	case j.Attempt == 0:
		return "-"
	case j.MaxAttempts == 0:
		return strconv.Itoa(j.Attempt)
	}
	return fmt.Sprintf("%d of %d", j.Attempt, j.MaxAttempts)
}

const jobsShowHelp = `Show a job: its status, the beginning of the last error, and the last ten attempts with start, end, outcome, id and
error. The id of a job is the id of
its message, also in the log and in the error queue. Times are UTC. With --json, one object.`

func (a *jobCommands) jobsShowCommand() *cobra.Command {
	var o ofEndpoint
	cmd := &cobra.Command{
		Use:     "show ID",
		Short:   "Show a job",
		Long:    jobsShowHelp,
		Example: `  holdfast jobs show 0199a2f0-6f2b-7cc1-a4c5-4f1fd0c4c9a1 --endpoint billing --database postgres://host/billing`,
		Args:    cobra.MatchAll(cobra.ExactArgs(1), checkIDs),
	}
	o.flags(a.app, cmd)
	asJSON := cmd.Flags().Bool("json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, ids []string) error {
		return a.onJobs(cmd.Context(), &o, func(jobs *schedule.Inspector) error {
			job, known, err := jobs.Job(cmd.Context(), ids[0])
			switch {
			case err != nil:
				return err
			case !known:
				return unknownJob(&o, ids[0])
			}
			if err := a.show(*asJSON, job, func(w io.Writer) { printJob(w, job) }); err != nil || *asJSON {
				return err
			}
			a.section("last error", job.LastError)
			a.section("attempts", history(job.History))
			return nil
		})
	}
	return cmd
}

// history returns a line for each attempt.
func history(attempts []schedule.Attempt) string {
	var b strings.Builder
	for _, a := range attempts {
		outcome := string(a.Outcome)
		if outcome == "" {
			outcome = string(schedule.Running)
		}
		fmt.Fprintf(&b, "%s  %s  %s  %s", when(a.Started), when(a.Ended), column(outcome), column(a.RunID))
		if a.Error != "" {
			fmt.Fprintf(&b, "  %s", column(a.Error))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// printJob prints what is known of a job, except its error.
func printJob(w io.Writer, j schedule.Job) {
	text := func(name, value string) {
		if value != "" && value != "-" {
			fmt.Fprintf(w, "%s\t%s\n", name, oneLine(value, 300))
		}
	}
	at := func(name string, t time.Time) { text(name, when(t)) }
	text("job", j.ID)
	text("status", string(j.Status))
	text("type", j.Type)
	text("schedule", j.Schedule)
	at("due", j.Due)
	text("correlation", j.Correlation)
	text("attempt", attempts(j))
	text("last run", j.RunID)
	if j.Interrupted > 0 {
		text("interrupted", strconv.Itoa(j.Interrupted))
	}
	at("sent", j.Created)
	at("last attempt began", j.Started)
	at("last sign", j.Renewed)
	at("next attempt", j.NextAttempt)
	at("cancel requested", j.CancelRequested)
	at("ended", j.Ended)
}

const jobsCancelHelp = `Cancel jobs. One that is queued or waits for a retry is Cancelled at once, and its handlers do not run. The context of a
handler that runs ends within 5 seconds: if it then returns an error, the job is Cancelled, otherwise it has succeeded. A
Running job whose process has given no sign for 10 minutes is Cancelled at once. A job that has ended stays as it
is, and the exit code is 1.`

func (a *jobCommands) jobsCancelCommand() *cobra.Command {
	return a.onEach(&cobra.Command{
		Use:     "cancel ID...",
		Short:   "Cancel jobs",
		Long:    jobsCancelHelp,
		Example: `  holdfast jobs cancel 0199a2f0-6f2b-7cc1-a4c5-4f1fd0c4c9a1 --endpoint billing --database postgres://host/billing`,
	}, a.cancelJob)
}

func (a *jobCommands) cancelJob(
	ctx context.Context, jobs *schedule.Inspector, o *ofEndpoint, id string,
) error {
	cancelled, err := jobs.Cancel(ctx, id)
	if err != nil {
		return err
	}
	job, known, err := jobs.Job(ctx, id)
	switch {
	case err != nil:
		return err
	case !known && !cancelled:
		return unknownJob(o, id)
	case !cancelled:
		return fmt.Errorf("job %.100q has ended: it is %s since %s", id, job.Status, when(job.Ended))
	case known && !job.Status.Ended():
		fmt.Fprintf(a.out, "%s is to be cancelled: the context of its handler ends within 5 seconds\n", id)
	default:
		fmt.Fprintf(a.out, "%s cancelled\n", id)
	}
	return nil
}

const jobsRunHelp = `Start an occurrence of schedules now. Their next times stay as they are. The order to do so waits in the outbox of the
endpoint until an instance runs. It begins although an earlier occurrence has not ended, or the schedule is paused.`

func (a *jobCommands) jobsRunCommand() *cobra.Command {
	return a.onEach(&cobra.Command{
		Use:     "run SCHEDULE...",
		Short:   "Start an occurrence of schedules now",
		Long:    jobsRunHelp,
		Example: `  holdfast jobs run nightly-report --endpoint billing --database postgres://host/billing`,
	}, a.onSchedule("is to run: holdfast jobs list shows the job when an instance has begun it", (*schedule.Inspector).Run))
}

const jobsPauseHelp = `Pause schedules: their occurrences are counted and not run, until holdfast jobs resume. The state is in the database, so
it holds for all instances and after restarts. A job that runs goes on.`

func (a *jobCommands) jobsPauseCommand() *cobra.Command {
	return a.onEach(&cobra.Command{
		Use:     "pause SCHEDULE...",
		Short:   "Pause schedules",
		Long:    jobsPauseHelp,
		Example: `  holdfast jobs pause nightly-report --endpoint billing --database postgres://host/billing`,
	}, a.onSchedule("is paused", setState(schedule.Paused)))
}

const jobsResumeHelp = `Let schedules go on that were paused. The occurrences that were due meanwhile are not made up for: run one of them by
holdfast jobs run.`

func (a *jobCommands) jobsResumeCommand() *cobra.Command {
	return a.onEach(&cobra.Command{
		Use:     "resume SCHEDULE...",
		Short:   "Let schedules go on that were paused",
		Long:    jobsResumeHelp,
		Example: `  holdfast jobs resume nightly-report --endpoint billing --database postgres://host/billing`,
	}, a.onSchedule("is active", setState(schedule.Active)))
}

func setState(state schedule.State) func(*schedule.Inspector, context.Context, string) error {
	return func(jobs *schedule.Inspector, ctx context.Context, name string) error {
		return jobs.SetState(ctx, name, state)
	}
}

// jobChange changes a job or a schedule.
type jobChange func(ctx context.Context, jobs *schedule.Inspector, o *ofEndpoint, name string) error

// onSchedule returns a change of a schedule by f, with the text that reports it.
func (a *jobCommands) onSchedule(
	done string, f func(*schedule.Inspector, context.Context, string) error,
) jobChange {
	return func(ctx context.Context, jobs *schedule.Inspector, o *ofEndpoint, name string) error {
		err := f(jobs, ctx, name)
		switch {
		case errors.Is(err, schedule.ErrUnknownSchedule):
			return unknownSchedule(ctx, jobs, o, name)
		case err == nil:
			fmt.Fprintf(a.out, "schedule %s %s\n", oneLine(name, 200), done)
		}
		return err
	}
}

// onEach completes a command that changes each of its arguments, also after an error.
func (a *jobCommands) onEach(cmd *cobra.Command, apply jobChange) *cobra.Command {
	var o ofEndpoint
	o.flags(a.app, cmd)
	cmd.Args = checkIDs
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		return a.onJobs(cmd.Context(), &o, func(jobs *schedule.Inspector) error {
			var errs []error
			for _, name := range names {
				errs = append(errs, apply(cmd.Context(), jobs, &o, name))
				if cmd.Context().Err() != nil {
					break
				}
			}
			return errors.Join(errs...)
		})
	}
	return cmd
}

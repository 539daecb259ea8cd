package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/schedule"
)

const jobsCancelHelp = `Cancel jobs. One that is queued or waits for a retry is Cancelled at once, and its handlers do not run. The context of a
handler that runs ends within 5 seconds: if it then returns an error, the job is Cancelled, otherwise it has succeeded. A
Running job whose process has given no sign for 10 minutes is Cancelled at once. A job that has ended stays as it
is, and the exit code is 1.`

func (a *app) jobsCancelCommand() *cobra.Command {
	return a.onEach(&cobra.Command{
		Use:     "cancel ID...",
		Short:   "Cancel jobs",
		Long:    jobsCancelHelp,
		Example: `  holdfast jobs cancel 0199a2f0-6f2b-7cc1-a4c5-4f1fd0c4c9a1 --endpoint billing --database postgres://host/billing`,
	}, a.cancelJob)
}

func (a *app) cancelJob(ctx context.Context, jobs *schedule.Inspector, o *ofEndpoint, id string) error {
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

func (a *app) jobsRunCommand() *cobra.Command {
	return a.onEach(&cobra.Command{
		Use:     "run SCHEDULE...",
		Short:   "Start an occurrence of schedules now",
		Long:    jobsRunHelp,
		Example: `  holdfast jobs run nightly-report --endpoint billing --database postgres://host/billing`,
	}, a.onSchedule("is to run: holdfast jobs list shows the job when an instance has begun it", (*schedule.Inspector).Run))
}

const jobsPauseHelp = `Pause schedules: their occurrences are counted and not run, until holdfast jobs resume. The state is in the database, so
it holds for all instances and after restarts. A job that runs goes on.`

func (a *app) jobsPauseCommand() *cobra.Command {
	return a.onEach(&cobra.Command{
		Use:     "pause SCHEDULE...",
		Short:   "Pause schedules",
		Long:    jobsPauseHelp,
		Example: `  holdfast jobs pause nightly-report --endpoint billing --database postgres://host/billing`,
	}, a.onSchedule("is paused", setState(schedule.Paused)))
}

const jobsResumeHelp = `Let schedules go on that were paused. The occurrences that were due meanwhile are not made up for: run one of them by
holdfast jobs run.`

func (a *app) jobsResumeCommand() *cobra.Command {
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
func (a *app) onSchedule(done string, f func(*schedule.Inspector, context.Context, string) error) jobChange {
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
func (a *app) onEach(cmd *cobra.Command, apply jobChange) *cobra.Command {
	var o ofEndpoint
	o.flags(a, cmd)
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

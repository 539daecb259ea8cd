package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/schedule"
	"github.com/holdfast-go/holdfast/transport"
)

const jobsHelp = `List, show and cancel the jobs of an endpoint, and run, pause and resume its schedules. Both are in the database of the
endpoint's outbox or, in the transaction mode SendsAtomicWithReceive, in that of its queues.

The commands work while the endpoint runs, and while it does not. What an instance has to do, such as to run a schedule,
waits in the outbox NAME.outbox until one runs.

Exit codes: 0 done, 1 failed or no such job or schedule, 2 wrong usage, 130 interrupted.`

func (a *app) jobsCommand() *cobra.Command {
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
func (a *app) onJobs(ctx context.Context, o *ofEndpoint, f func(*schedule.Inspector) error) error {
	t, err := o.database(a)
	if err != nil {
		return err
	}
	return withTarget(ctx, a, t, programName, "store jobs", func(conn transport.Conn) error {
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
func unknownSchedule(ctx context.Context, jobs *schedule.Inspector, o *ofEndpoint, name string) error {
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

package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/schedule"
)

const jobsListHelp = `List the schedules of an endpoint by name: their state, their times, the time of the next occurrence, the outcome of the
last one, and how many occurrences were missed, skipped because another one had not ended, or due while the schedule was
paused. Then the jobs that have not ended, in the order of their ids, and their number, which databases may estimate.
Times are UTC. Listing changes nothing.

A list has --first jobs; when there are more, the last line says how the next page is listed. --ended lists the jobs that
have ended instead, as long as they are kept. With --json, one object.`

func (a *app) jobsListCommand() *cobra.Command {
	var o ofEndpoint
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the schedules and jobs of an endpoint",
		Long:  jobsListHelp,
		Example: `  holdfast jobs list --endpoint billing --database postgres://host/billing
  holdfast jobs list --endpoint billing --ended --first 20`,
		Args: cobra.NoArgs,
	}
	o.flags(a, cmd)
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
func jobPages(ctx context.Context, jobs *schedule.Inspector, ended bool, after string, first int) (all []schedule.Job, more bool, err error) {
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

package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/schedule"
)

const jobsShowHelp = `Show a job: its status, the beginning of the last error, and the last ten attempts with start, end, outcome, id and
error. The id of a job is the id of
its message, also in the log and in the error queue. Times are UTC. With --json, one object.`

func (a *app) jobsShowCommand() *cobra.Command {
	var o ofEndpoint
	cmd := &cobra.Command{
		Use:     "show ID",
		Short:   "Show a job",
		Long:    jobsShowHelp,
		Example: `  holdfast jobs show 0199a2f0-6f2b-7cc1-a4c5-4f1fd0c4c9a1 --endpoint billing --database postgres://host/billing`,
		Args:    cobra.MatchAll(cobra.ExactArgs(1), checkIDs),
	}
	o.flags(a, cmd)
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

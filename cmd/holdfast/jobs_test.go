package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/resilience"
	"github.com/holdfast-go/holdfast/schedule"
)

type (
	buildReport struct{}
	sendInvoice struct{ Order string }
)

// jobShop is the endpoint billing with the schedule reports, which is due in a week.
type jobShop struct {
	t         *testing.T
	database  string
	scheduler *schedule.Scheduler
	endpoint  *endpoint.Endpoint
	handled   chan schedule.Run // of a report, or of an invoice that is paid
	began     chan struct{}     // the handler of a "slow" invoice
}

// withJobs runs the endpoint until the end of the test.
func withJobs(t *testing.T, database string) *jobShop {
	t.Helper()
	s := &jobShop{t: t, database: database, handled: make(chan schedule.Run), began: make(chan struct{})}
	setenv(t, databaseVar, s.database)
	target, err := parseTransport(s.database)
	if err != nil {
		t.Fatal(err)
	}
	s.scheduler, err = schedule.New(schedule.Config{Schedules: []schedule.Schedule{
		{Name: "reports", Every: 7 * 24 * time.Hour, Message: buildReport{}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	cfg := endpoint.Config{
		Name: "billing", Transport: target.Transport, Install: true, Logger: slog.New(slog.DiscardHandler),
		Transactions: endpoint.SendsAtomicWithReceive, Concurrency: 4,
		Messages: []endpoint.Message{
			endpoint.Command[buildReport]("Shop.BuildReport"), endpoint.Command[sendInvoice]("Shop.SendInvoice"),
		},
		Handlers: []endpoint.Handler{
			endpoint.Handle(func(ctx context.Context, _ *endpoint.Session, _ buildReport) error { return s.note(ctx) }),
			endpoint.Handle(s.invoice),
		},
		Recoverability: recoverability.Config{Policies: resilience.MustCatalog(
			resilience.Policy{Name: "mail", Retry: resilience.Retry{Delay: 12 * time.Hour}},
		)},
	}
	s.scheduler.Apply(&cfg)
	if s.endpoint, err = endpoint.New(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.endpoint.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	if err := s.endpoint.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	s.until(func(l schedule.Snapshot) bool { return len(l.Schedules) == 1 })
	return s
}

// note passes on the job of the handler that runs.
func (s *jobShop) note(ctx context.Context) error {
	run, _ := schedule.RunOf(ctx)
	select {
	case s.handled <- run:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *jobShop) invoice(ctx context.Context, _ *endpoint.Session, m sendInvoice) error {
	switch m.Order {
	case "refused":
		return errors.New("the mail server\nrefuses the mail")
	case "slow":
		s.began <- struct{}{}
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return s.note(ctx)
}

func (s *jobShop) enqueue(order string, opts ...schedule.Option) (id string) {
	s.t.Helper()
	opts = append(opts, schedule.Correlation("order "+order), schedule.Policy("mail"))
	id, err := s.scheduler.EnqueueFrom(s.t.Context(), s.endpoint, sendInvoice{order}, opts...)
	if err != nil {
		s.t.Fatal(err)
	}
	return id
}

// until lists schedules and jobs until they are as wanted.
func (s *jobShop) until(is func(schedule.Snapshot) bool, args ...string) schedule.Snapshot {
	s.t.Helper()
	var l schedule.Snapshot
	until(s.t, "schedules and jobs as wanted", func() (any, bool) {
		l = schedule.Snapshot{}
		if err := json.Unmarshal([]byte(must(s.t, "", ofJobs(append([]string{"list", "--json"}, args...)...)...)), &l); err != nil {
			s.t.Fatal(err)
		}
		return l, is(l)
	})
	return l
}

// untilJob waits until a job has a status.
func (s *jobShop) untilJob(id string, status schedule.Status) schedule.Job {
	s.t.Helper()
	var job schedule.Job
	s.until(func(schedule.Snapshot) bool {
		if code, out, errs := call(s.t, "", ofJobs("show", id, "--json")...); code != exitOK {
			s.t.Fatal(errs)
		} else if err := json.Unmarshal([]byte(out), &job); err != nil {
			s.t.Fatal(err)
		}
		return job.Status == status
	})
	return job
}

// ofJobs adds the flag of the endpoint to a command of jobs.
func ofJobs(args ...string) []string {
	return append(append([]string{"jobs"}, args...), "--endpoint", "billing")
}

func contains(t *testing.T, out string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(out, text) {
			t.Errorf("no %q in\n%s", text, out)
		}
	}
}

// It takes five seconds: so long may pass until an instance finds that a job that it runs is
// cancelled.
func TestJobsAreListedShownAndCancelled(t *testing.T) {
	t.Parallel()
	testJobs(t, withJobs(t, databases["sqlite"](t)))
}

func TestChaosJobsOnPostgreSQL(t *testing.T) {
	t.Parallel()
	brokertest.Fault(t)
	testJobs(t, withJobs(t, databases["postgres"](t)))
}

func testJobs(t *testing.T, s *jobShop) {
	later, refused, slow := s.enqueue("later", schedule.After(time.Hour)), s.enqueue("refused"), s.enqueue("slow")
	paid := s.enqueue("paid")
	<-s.began
	<-s.handled
	s.untilJob(refused, schedule.WaitingRetry)
	s.untilJob(paid, schedule.Succeeded)

	contains(t, must(t, "", ofJobs("list")...), "reports", "every 168h0m0s", "Active", later, refused, slow, "Queued", "WaitingRetry",
		"Running", "1 of 4", "the mail server refuses the mail", "3 jobs that have not ended")
	if out := must(t, "", ofJobs("list", "--ended")...); !strings.Contains(out, paid) || strings.Contains(out, later) {
		t.Errorf("ended jobs:\n%s", out)
	}

	// Pages of one job have each job once.
	var listed []string
	after := ""
	for {
		page := s.until(func(schedule.Snapshot) bool { return true }, "--first", "1", "--after", after)
		if len(page.Jobs) == 0 {
			break
		}
		after = page.Jobs[0].ID
		listed = append(listed, after)
	}
	if len(listed) != 3 || listed[0] == listed[1] || listed[1] == listed[2] {
		t.Errorf("pages have the jobs %q", listed)
	}
	contains(t, must(t, "", ofJobs("list", "--first", "1")...), "there may be more: list them with --after "+listed[0])

	contains(t, must(t, "", ofJobs("show", refused)...), refused, "WaitingRetry", "order refused", "Shop.SendInvoice", "1 of 4", "next attempt",
		"the mail server\n  refuses the mail", "attempts:\n", "  Failed  ")

	contains(t, must(t, "", ofJobs("cancel", later, refused)...), later+" cancelled", refused+" cancelled")
	contains(t, must(t, "", ofJobs("cancel", slow)...), slow+" is to be cancelled")
	if job := s.untilJob(slow, schedule.Cancelled); job.CancelRequested.IsZero() || job.Attempt != 1 {
		t.Errorf("the cancelled job is %+v", job)
	}
	s.untilJob(later, schedule.Cancelled)
	s.untilJob(refused, schedule.Cancelled)

	// Each is tried, also after a failure.
	last := s.enqueue("last", schedule.After(time.Hour))
	code, out, errs := call(t, "", ofJobs("cancel", "none", paid, last)...)
	if code != exitFailed || !strings.Contains(out, last+" cancelled") {
		t.Errorf("exit code %d: %s", code, out)
	}
	contains(t, errs, `has no job "none"`, "has ended: it is Succeeded since")
	if code, _, errs := call(t, "", ofJobs("show", "none")...); code != exitFailed || !strings.Contains(errs, `has no job "none"`) {
		t.Errorf("an unknown job: exit code %d, %s", code, errs)
	}
}

func TestSchedulesAreRunPausedAndResumed(t *testing.T) {
	t.Parallel()
	for name, url := range databases {
		t.Run(name, func(t *testing.T) { testSchedules(t, withJobs(t, url(t))) })
	}
}

func testSchedules(t *testing.T, s *jobShop) {
	next := s.until(func(l schedule.Snapshot) bool { return true }).Schedules[0].Next

	contains(t, must(t, "", ofJobs("run", "reports")...), "schedule reports is to run")
	run := <-s.handled
	if run.Schedule != "reports" {
		t.Errorf("run %+v", run)
	}
	s.untilJob(run.JobID, schedule.Succeeded)

	contains(t, must(t, "", ofJobs("pause", "reports")...), "schedule reports is paused")
	contains(t, must(t, "", ofJobs("pause", "reports")...), "schedule reports is paused") // again
	paused := s.until(func(l schedule.Snapshot) bool { return l.Schedules[0].Last.Status == schedule.Succeeded }).Schedules[0]
	if paused.State != schedule.Paused || !paused.Next.Equal(next) {
		t.Errorf("paused: %+v", paused)
	}
	contains(t, must(t, "", ofJobs("list")...), "Paused")
	contains(t, must(t, "", ofJobs("resume", "reports")...), "schedule reports is active")
	if l := s.until(func(schedule.Snapshot) bool { return true }); l.Schedules[0].State != schedule.Active {
		t.Errorf("resumed: %+v", l.Schedules[0])
	}

	for _, verb := range []string{"run", "pause", "resume"} {
		code, out, errs := call(t, "", ofJobs(verb, "report", "reports")...)
		if code != exitFailed || !strings.Contains(errs, `has no schedule "report": it has reports`) || !strings.Contains(out, "schedule reports is") {
			t.Errorf("%s: exit code %d, %s%s", verb, code, out, errs)
		}
	}
	if run := <-s.handled; run.Schedule != "reports" {
		t.Errorf("run %+v", run)
	}
	code, _, errs := call(t, "", "jobs", "run", "reports", "--endpoint", "biling")
	if code != exitFailed || !strings.Contains(errs, `endpoint "biling" has no schedule "reports", nor any other`) {
		t.Errorf("an unknown endpoint: exit code %d, %s", code, errs)
	}
	later := s.enqueue("later", schedule.After(time.Hour))
	contains(t, must(t, "", ofJobs("cancel", later)...), later+" cancelled")
	contains(t, must(t, "", "jobs", "list", "--endpoint", "biling"), "no schedules and no jobs of endpoint biling")
}

func TestBadUseOfJobsIsAnError(t *testing.T) {
	setenv(t, databaseVar, brokertest.Postgres(t))
	const missing = "has the endpoint run with schedules or jobs on this database?"
	for _, c := range []struct {
		name string
		args []string
		code int
		text string
	}{
		{"no endpoint", []string{"jobs", "list"}, exitUsage, "--endpoint is required"},
		{"no id", ofJobs("show"), exitUsage, "accepts 1 arg"},
		{"empty id", ofJobs("show", ""), exitUsage, "is empty"},
		{"no id to cancel", ofJobs("cancel"), exitUsage, "nothing is selected"},
		{"empty schedule", ofJobs("pause", ""), exitUsage, "is empty"},
		{"no jobs at once", ofJobs("list", "--first", "0"), exitUsage, "must be positive"},
		{"unknown command", []string{"jobs", "canel"}, exitUsage, "did you mean cancel?"},
		{"tables are missing", ofJobs("list"), exitFailed, missing},
		{"tables are missing, show", ofJobs("show", "1"), exitFailed, missing},
		{"tables are missing, cancel", ofJobs("cancel", "1"), exitFailed, missing},
		{"tables are missing, run", ofJobs("run", "reports"), exitFailed, missing},
		{"tables are missing, pause", ofJobs("pause", "reports"), exitFailed, missing},
		{"a broker", ofJobs("list", "--database", "amqp://host"), exitUsage, "no database"},
		{"tables are missing, SQLite", ofJobs("list", "--database", "sqlite:"+filepath.Join(t.TempDir(), "billing.db")), exitFailed, missing},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, out, errs := call(t, "", c.args...)
			if code != c.code || !strings.Contains(errs, c.text) {
				t.Errorf("exit code %d, want %d; %q is not in %s%s", code, c.code, c.text, out, errs)
			}
		})
	}
}

func TestJobsNeedTheRightToTheirTable(t *testing.T) {
	t.Parallel()
	s := withJobs(t, brokertest.Postgres(t))
	conn, err := pgx.Connect(t.Context(), s.database)
	if err != nil {
		t.Fatal(err)
	}
	user := "jobs_" + strings.ReplaceAll(uuid.New(time.Now()), "-", "")
	execute := func(statement string) {
		t.Helper()
		if _, err := conn.Exec(context.WithoutCancel(t.Context()), statement); err != nil {
			t.Error(err)
		}
	}
	execute(`CREATE ROLE ` + user + ` LOGIN PASSWORD 'secret'`)
	t.Cleanup(func() {
		execute(`DROP ROLE ` + user)
		if err := conn.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	restricted, err := url.Parse(s.database)
	if err != nil {
		t.Fatal(err)
	}
	restricted.User = url.UserPassword(user, "secret")
	for _, args := range [][]string{{"list"}, {"show", "1"}, {"cancel", "1"}, {"run", "reports"}, {"pause", "reports"}} {
		code, out, errs := call(t, "", ofJobs(append(args, "--database", restricted.String())...)...)
		if code != exitFailed || !strings.Contains(errs, "permission denied") || strings.Contains(errs, "secret") {
			t.Errorf("%q: exit code %d, %s%s", args, code, out, errs)
		}
	}
}

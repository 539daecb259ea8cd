package schedule_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/resilience"
	"github.com/holdfast-go/holdfast/schedule"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

type (
	buildReport struct{}
	sendInvoice struct{ Order string }
	chargeOrder struct{ Order string }
)

// shop is an endpoint with schedules and jobs, in a bubble.
type shop struct {
	t       *testing.T
	broker  *inmemory.Transport
	db      transport.Transport // of the outbox; the broker without an outbox
	started time.Time

	mu       sync.Mutex
	reports  []time.Duration // since started
	runs     []schedule.Run
	report   func(ctx context.Context) error // the handler of buildReport
	invoice  func(ctx context.Context) error
	keep     time.Duration              // of ended jobs; 0 is the default
	instance string                     // with a queue of its own, if set
	lose     int                        // the number of messages of reports that are lost
	sent     map[string][]time.Duration // the times since started at which the reports were sent, by job
	sentTo   func(d *pipeline.Dispatch) // called when operations have been sent
	failed   func()                     // called when an attempt has failed
	// immediate and delayed are the retries; 0 is the default
	immediate, delayed int

	scheduler *schedule.Scheduler
	endpoint  *endpoint.Endpoint
	stop      func()
}

// inEachMode runs f with an outbox and in the mode SendsAtomicWithReceive, in a bubble each.
func inEachMode(t *testing.T, f func(t *testing.T, s *shop)) {
	t.Helper()
	for name, atomic := range map[string]bool{"outbox": false, "atomic": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &shop{t: t, broker: &inmemory.Transport{}, started: time.Now()}
				s.broker.CreateQueues("error")
				if s.db = s.broker; !atomic {
					s.db = &inmemory.Transport{}
				}
				f(t, s)
				if s.stop != nil {
					s.stop()
				}
			})
		})
	}
}

// hasInbox reports whether the endpoint recognizes a message that comes again: with an outbox.
func (s *shop) hasInbox() bool { return s.db != transport.Transport(s.broker) }

// start runs the endpoint with schedules of buildReport.
func (s *shop) start(schedules ...schedule.Schedule) {
	s.t.Helper()
	s.prepare(schedules...)()
}

// prepare returns a function that runs the endpoint.
func (s *shop) prepare(schedules ...schedule.Schedule) (run func()) {
	s.t.Helper()
	scheduler, err := schedule.New(schedule.Config{Schedules: schedules, Keep: s.keep})
	if err != nil {
		s.t.Fatal(err)
	}
	s.scheduler = scheduler
	cfg := endpoint.Config{
		Name: "billing", Transport: s.broker, Install: true, Concurrency: 4, Instance: s.instance, InstanceQueue: s.instance != "",
		Messages: []endpoint.Message{
			endpoint.Command[buildReport]("Shop.BuildReport"), endpoint.Command[sendInvoice]("Shop.SendInvoice"),
			endpoint.Command[chargeOrder]("Shop.ChargeOrder"),
		},
		Handlers: []endpoint.Handler{endpoint.Handle(s.buildReport), endpoint.Handle(s.sendInvoice), endpoint.Handle(s.charge)},
	}
	cfg.Recoverability.Policies = resilience.MustCatalog(resilience.Policy{Name: "invoice-email", Retry: resilience.Retry{
		Max: 2, Delay: 10 * time.Second, Backoff: resilience.Exponential,
	}}, resilience.Policy{Name: "limit", Timeout: 5 * time.Second})
	if s.hasInbox() {
		cfg.Outbox = s.db
	} else {
		cfg.Transactions = endpoint.SendsAtomicWithReceive
	}
	cfg.Recoverability.Immediate, cfg.Recoverability.Delayed = s.immediate, s.delayed
	cfg.Pipeline.Dispatch.Use("lose", s.dispatch)
	cfg.Pipeline.Recover.Use("failed", func(next pipeline.Func[*pipeline.Recover]) pipeline.Func[*pipeline.Recover] {
		return func(ctx context.Context, r *pipeline.Recover) error {
			if s.failed != nil {
				s.failed()
			}
			return next(ctx, r)
		}
	})
	scheduler.Apply(&cfg)
	return func() {
		r := harness.Start(s.t, cfg)
		s.endpoint, s.stop = r.Endpoint, r.End
		s.after(0)
	}
}

// dispatch counts the messages of reports, and loses the first.
func (s *shop) dispatch(next pipeline.Func[*pipeline.Dispatch]) pipeline.Func[*pipeline.Dispatch] {
	return func(ctx context.Context, d *pipeline.Dispatch) error {
		s.mu.Lock()
		if s.sent == nil {
			s.sent = map[string][]time.Duration{}
		}
		d.Operations = slices.DeleteFunc(slices.Clone(d.Operations), func(op transport.Operation) bool {
			if op.Message == nil || op.Message.Headers.Get(header.EnclosedMessageTypes) != "Shop.BuildReport" {
				return false
			}
			s.sent[op.Message.ID] = append(s.sent[op.Message.ID], time.Since(s.started))
			s.lose--
			return s.lose >= 0
		})
		s.mu.Unlock()
		err := next(ctx, d)
		if s.sentTo != nil {
			s.sentTo(d)
		}
		return err
	}
}

// sentTimes returns the times at which the message of a job was sent.
func (s *shop) sentTimes(id string) []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.sent[id])
}

// runsOf returns the number of the runs of a job.
func (s *shop) runsOf(id string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, run := range s.runs {
		if run.JobID == id {
			n++
		}
	}
	return n
}

// after lets time pass.
func (s *shop) after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (s *shop) record(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	run, _ := schedule.RunOf(ctx)
	s.runs = append(s.runs, run)
	s.reports = append(s.reports, time.Since(s.started).Round(time.Second))
}

func (s *shop) buildReport(ctx context.Context, _ *endpoint.Session, _ buildReport) error {
	s.record(ctx)
	if s.report != nil {
		return s.report(ctx)
	}
	return nil
}

func (s *shop) sendInvoice(ctx context.Context, _ *endpoint.Session, _ sendInvoice) error {
	s.record(ctx)
	if s.invoice != nil {
		return s.invoice(ctx)
	}
	return nil
}

func (s *shop) charge(ctx context.Context, session *endpoint.Session, m chargeOrder) error {
	_, err := s.scheduler.Enqueue(ctx, session, sendInvoice(m),
		schedule.Correlation(m.Order), schedule.Policy("invoice-email"))
	return err
}

// run returns the run with an index.
func (s *shop) run(i int) schedule.Run {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs[i]
}

func (s *shop) times() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]time.Duration(nil), s.reports...)
}

func (s *shop) snapshot() schedule.Snapshot {
	s.t.Helper()
	snapshot, err := s.inspector().Snapshot(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return snapshot
}

func (s *shop) inspector() *schedule.Inspector {
	s.t.Helper()
	i, err := s.scheduler.Inspector(s.endpoint)
	if err != nil {
		s.t.Fatal(err)
	}
	return i
}

func (s *shop) job(id string) schedule.Job {
	s.t.Helper()
	job, known, err := s.inspector().Job(s.t.Context(), id)
	if err != nil || !known {
		s.t.Fatalf("job %q: known %v, %v", id, known, err)
	}
	return job
}

// sleep waits in virtual time.
func sleep(d time.Duration) { time.Sleep(d) }

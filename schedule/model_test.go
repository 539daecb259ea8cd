package schedule_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/internal/histories"
	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/schedule"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// modelProcesses is the largest number of processes that run at a time.
const modelProcesses = 2

// A schedule and jobs run through random histories: deployments, restarts, crashes, steps of
// clocks, lost messages, and the calls of people. A history that is repeated by its seed prints its
// log.
func TestRandomHistories(t *testing.T) {
	histories.Run(t, histories.Count{Short: 40, Test: 200, Soak: 10_000}, func(t *testing.T, rnd *rand.Rand) {
		newHistory(t, rnd).run()
	})
}

// history is a random history of one schedule with the name "reports", and of jobs.
type history struct {
	*testing.T
	seed    uint64 // of what the programs draw
	random  *rand.Rand
	started time.Time

	broker, db *inmemory.Transport // the same one in the mode SendsAtomicWithReceive
	versions   []schedule.Schedule // of the program: one, or two with different times
	unit       time.Duration       // the interval of the first version
	programs   []*program          // that run
	inspector  *schedule.Inspector
	records    stateful.Database
	book       book
	crash      crash
	log        []string

	isLossy    bool        // messages may get lost
	hasSteps   bool        // clocks may step
	isDeployed bool        // the second version has run
	hasCopies  atomic.Bool // a crash may have sent messages of the outbox twice
	last       planState
}

// planState is a part of the record of a plan.
type planState struct {
	First, Due, Next, Unknown time.Time
	Current                   string
	Last                      schedule.Outcome
	Missed, Skipped, Paused   int
}

// crash ends a process in the midst of a call.
type crash struct {
	calls  atomic.Int64 // until the crash; 0 is none
	victim atomic.Pointer[program]
}

func (c *crash) call(string, string) error {
	if c.calls.Load() > 0 && c.calls.Add(-1) == 0 {
		c.victim.Load().kill()
	}
	return nil
}

func newHistory(t *testing.T, rnd *rand.Rand) *history {
	h := &history{
		T: t, seed: rnd.Uint64(), started: time.Now(), random: rnd,
		broker: &inmemory.Transport{}, db: &inmemory.Transport{},
	}
	if h.chance(40) {
		h.db = h.broker
	}
	h.broker.CreateQueues("error")
	h.broker.Fail, h.db.Fail = h.crash.call, h.crash.call
	h.isLossy, h.hasSteps = h.chance(12), h.chance(30)
	h.unit = h.between(5*time.Second, 20*time.Second)
	if h.isLossy || h.chance(5) {
		h.unit = h.between(3*time.Minute, 8*time.Minute)
	}
	h.versions = []schedule.Schedule{h.version(h.unit)}
	if h.chance(35) {
		h.versions = append(h.versions, h.version(h.unit+time.Second))
	}
	conn, err := h.db.Open(t.Context(), transport.Env{Endpoint: "tool"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // a connection in memory
	if h.inspector, err = schedule.Inspect(conn, "billing"); err == nil {
		h.records, err = stateful.DatabaseOn(conn)
	}
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// version returns a version of the schedule.
func (h *history) version(unit time.Duration) schedule.Schedule {
	s := schedule.Schedule{Name: "reports", Message: buildReport{}, Missed: schedule.Missed(h.random.IntN(3))}
	if h.chance(30) {
		s.Overlap = schedule.AllowOverlap
	}
	switch n := h.random.IntN(10); {
	case n < 5:
		s.Every = unit.Round(time.Second)
	case n < 8:
		s.After = unit
	case unit < time.Minute:
		s.Cron = "*/10 * * * * *"
	default:
		s.Cron = "*/5 * * * *"
	}
	return s
}

func (h *history) chance(percent int) bool { return h.random.IntN(100) < percent }

func (h *history) between(a, b time.Duration) time.Duration {
	return a + time.Duration(h.random.Int64N(int64(b-a)))
}

func (h *history) note(format string, args ...any) {
	line := fmt.Sprintf("%12v ", time.Since(h.started).Round(time.Millisecond)) + fmt.Sprintf(format, args...)
	h.log = append(h.log, line)
}

// pass lets time pass.
func (h *history) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
	h.bury()
	h.observe()
}

// run runs the history.
func (h *history) run() {
	defer func() {
		for _, p := range h.programs {
			p.end()
		}
		if h.Failed() {
			h.Logf("the history of %+v:\n%s", h.versions, strings.Join(h.log, "\n"))
		}
	}()
	h.start()
	for range 10 + h.random.IntN(10) {
		h.pass(h.between(time.Microsecond, 2*h.unit+h.unit/2))
		h.act()
		if h.Failed() {
			return
		}
	}
	h.settle()
	h.check()
}

// act does one random thing.
func (h *history) act() {
	switch n := h.random.IntN(100); {
	case n < 14:
		h.start()
	case n < 22:
		h.stop()
	case n < 30:
		h.kill()
	case n < 36:
		h.step()
	case n < 43:
		h.setState()
	case n < 53:
		h.must(h.inspector.Run(h.Context(), "reports"), "run now")
	case n < 63:
		h.enqueue()
	case n < 71:
		h.enqueueInHandler()
	case n < 83:
		h.cancel()
	case n < 91 && h.isLossy:
		n := 1 + h.random.IntN(3)
		h.note("lose %d messages", n)
		h.book.loseNext(n)
	}
	synctest.Wait()
}

// must checks the error of a call, which fails before the first process has begun the plan.
func (h *history) must(err error, what string) {
	h.Helper()
	h.note("%s: %v", what, err)
	if err != nil && !h.last.Due.IsZero() {
		h.Errorf("%s: %v", what, err)
	}
}

func (h *history) start() {
	if len(h.programs) == modelProcesses {
		return
	}
	version := h.random.IntN(len(h.versions))
	h.isDeployed = h.isDeployed || version == 1
	h.note("start version %d", version)
	h.programs = append(h.programs, newProgram(h, h.versions[version]))
	synctest.Wait()
}

// one returns a process that runs, or nil.
func (h *history) one() *program {
	if len(h.programs) == 0 {
		return nil
	}
	return h.programs[h.random.IntN(len(h.programs))]
}

func (h *history) stop() {
	if p := h.one(); p != nil {
		h.note("stop a process")
		p.end()
		h.bury()
	}
}

// kill ends a process at one of its next calls, or now.
func (h *history) kill() {
	p := h.one()
	if p == nil || h.crash.calls.Load() > 0 {
		return
	}
	h.hasCopies.Store(h.db != h.broker)
	if h.chance(30) {
		h.note("kill a process")
		p.kill()
		h.bury()
		return
	}
	calls := 1 + h.random.IntN(60)
	h.note("kill a process after %d calls", calls)
	h.crash.victim.Store(p)
	h.crash.calls.Store(int64(calls))
}

// bury removes processes that have ended.
func (h *history) bury() {
	living := h.programs[:0]
	for _, p := range h.programs {
		if p.ended.Load() {
			p.end()
			continue
		}
		living = append(living, p)
	}
	h.programs = living
	if victim := h.crash.victim.Load(); victim != nil && victim.ended.Load() {
		h.crash.calls.Store(0)
	}
}

// step lets the clock of a process differ from the clock of the database for a minute.
func (h *history) step() {
	if p := h.one(); p != nil && h.hasSteps {
		by := h.between(-45*time.Second, 45*time.Second)
		h.note("a clock steps by %v", by)
		p.machine.step(by, time.Minute)
	}
}

func (h *history) setState() {
	state := schedule.Paused
	if h.chance(60) {
		state = schedule.Active
	}
	h.must(h.inspector.SetState(h.Context(), "reports", state), string(state))
}

func (h *history) enqueue() {
	p := h.one()
	if p == nil {
		return
	}
	opts := []schedule.Option{schedule.Correlation(fmt.Sprint("job ", h.random.Int()))}
	if h.chance(50) {
		opts = append(opts, schedule.After(h.between(0, 3*h.unit)))
	}
	if h.chance(50) {
		opts = append(opts, schedule.Policy("invoice-email"))
	}
	id, err := p.scheduler.EnqueueFrom(h.Context(), p.endpoint, sendInvoice{}, opts...)
	h.note("enqueue a job: %s %v", id, err)
	if err != nil && !p.ended.Load() {
		h.Errorf("enqueue: %v", err)
	}
}

func (h *history) enqueueInHandler() {
	if p := h.one(); p != nil {
		h.note("enqueue a job in a handler: %v", p.endpoint.SendLocal(h.Context(), chargeOrder{fmt.Sprint("job ", h.random.Int())}))
	}
}

// cancel cancels a job.
func (h *history) cancel() {
	snapshot, err := h.inspector.Snapshot(h.Context())
	if err != nil || len(snapshot.Jobs) == 0 {
		return
	}
	id := snapshot.Jobs[h.random.IntN(len(snapshot.Jobs))].ID
	cancelled, err := h.inspector.Cancel(h.Context(), id)
	h.note("cancel job %s: %v %v", id, cancelled, err)
	if err != nil {
		h.Errorf("cancel: %v", err)
	}
	if job, known, err := h.inspector.Job(h.Context(), id); err == nil && known && job.Status == schedule.Cancelled {
		h.book.cancel(id)
	}
}

// plan reads the plan. It reports false if there is none.
func (h *history) plan() (p planState, known bool) {
	rs, err := h.records.Records(h.Context(), transport.RecordPage{Kind: "holdfast.schedules@billing", Limit: 10})
	if err != nil || len(rs) == 0 {
		return p, false
	}
	if err := json.Unmarshal(rs[0].State, &p); err != nil {
		h.Fatal(err)
	}
	return p, true
}

// observe checks that the plan only goes on.
func (h *history) observe() {
	h.book.report(h)
	now, known := h.plan()
	if !known {
		return
	}
	last := h.last
	h.last = now
	if now.Due.Before(last.Due) {
		h.Errorf("at %v: the last due time went back from %v to %v", time.Since(h.started), last.Due, now.Due)
	}
	if now.Last.Due.Before(last.Last.Due) {
		h.Errorf("at %v: the outcome of an older occurrence replaces a newer one: %+v after %+v", time.Since(h.started), now.Last, last.Last)
	}
	if now.Missed < last.Missed || now.Skipped < last.Skipped || now.Paused < last.Paused {
		h.Errorf("at %v: counts went back: %+v after %+v", time.Since(h.started), now, last)
	}
}

// settle ends all faults, and waits until each job has ended that can.
func (h *history) settle() {
	h.note("settle")
	h.crash.calls.Store(0)
	h.bury()
	h.book.settle()
	final := h.versions[0]
	if h.isDeployed {
		final = h.versions[len(h.versions)-1]
		for _, p := range h.programs {
			p.end()
		}
		h.bury()
	}
	for _, p := range h.programs {
		p.machine.step(0, 0)
	}
	if len(h.programs) == 0 {
		h.programs = append(h.programs, newProgram(h, final))
	}
	h.pass(15 * time.Second)
	h.must(h.inspector.SetState(h.Context(), "reports", schedule.Active), "resume")
	wait := 45*time.Second + 3*h.unit // jobs for later, long handlers and retries
	if h.isLossy {
		wait += 100 * time.Minute // two messages for one job are an hour apart
	}
	h.pass(wait)
	h.pass(h.between(0, time.Second))
}

// check checks the end of the history.
func (h *history) check() {
	before := h.book.count()
	h.pass(2*cmp.Or(h.interval(), h.unit) + 20*time.Second)
	if h.book.count() == before {
		plan, _ := h.plan()
		h.Errorf("the schedule has stopped: %+v", plan)
	}
	for _, p := range h.programs { // the last occurrences end
		p.end()
	}
	h.observe()
	ending{h}.checkJobs()
}

// interval is the longest time between two occurrences.
func (h *history) interval() (most time.Duration) {
	for _, v := range h.versions {
		d := max(v.Every, v.After)
		switch {
		case v.Cron != "" && h.unit < time.Minute:
			d = 10 * time.Second
		case v.Cron != "":
			d = 5 * time.Minute
		}
		most = max(most, d)
	}
	return most
}

// all reads all jobs.
func (h *history) all(ended bool) []schedule.Job {
	h.Helper()
	jobs, err := h.inspector.Jobs(context.WithoutCancel(h.Context()), ended, "", 100_000)
	if err != nil {
		h.Fatal(err)
	}
	return jobs
}

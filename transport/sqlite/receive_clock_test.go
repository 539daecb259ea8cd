package sqlite

import (
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

// machine has a file and a clock that a test sets, for several processes.
type machine struct {
	path  string
	ahead atomic.Int64
}

func (m *machine) step(d time.Duration) { m.ahead.Add(int64(d)) }

// peer opens the file for a process, with the queues "in" and "other", from which the process has claimed.
func (m *machine) peer(t *testing.T) *peer {
	t.Helper()
	s, err := open(t.Context(), m.path, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	s.clock.wall = func() time.Time { return time.Now().Add(time.Duration(m.ahead.Load())) }
	p := &peer{T: t, store: s}
	s.clock.Log = slog.New(slog.NewTextHandler(&p.log, nil))
	plan := transport.Plan{Queues: []transport.Queue{{Name: "in", Timers: true}, {Name: "other"}}}
	p.ok(s.Install(t.Context(), plan))
	p.claims("in")
	p.claims("other")
	return p
}

// peer is the store of a process.
type peer struct {
	*testing.T
	*store
	log strings.Builder
}

func (p *peer) ok(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

// insert inserts a message for each id.
func (p *peer) insert(queue string, after time.Duration, ids ...string) {
	p.Helper()
	var u tablequeue.Unit
	for _, id := range ids {
		r := tablequeue.Row{Queue: queue, ID: id, Headers: []byte("{}"), After: after}
		if strings.HasPrefix(id, "timer") {
			copy(r.Name[:], id)
		}
		u.Rows = append(u.Rows, r)
	}
	p.ok(p.Flush(p.Context(), []*tablequeue.Unit{&u}))
}

// held is the lease of the rows that a test claims, for a minute.
const held = 77

// claims claims all rows of a queue that are visible, and checks their ids.
func (p *peer) claims(queue string, want ...string) (rows []tablequeue.Claimed) {
	p.Helper()
	c := tablequeue.Claim{Queue: queue, Limit: 100, Lease: held, For: time.Minute, Owner: "me"}
	rows, _, err := p.Claim(p.Context(), c, nil)
	p.ok(err)
	var ids []string
	for _, r := range rows {
		ids = append(ids, r.ID)
	}
	slices.Sort(ids)
	if !slices.Equal(ids, want) {
		p.Errorf("claimed from %q are %q, want %q", queue, ids, want)
	}
	return rows
}

// completes removes claimed rows of "in".
func (p *peer) completes(rows []tablequeue.Claimed) {
	p.Helper()
	for _, r := range rows {
		u := &tablequeue.Unit{
			Verb: tablequeue.Delete, Queue: "in", Lease: tablequeue.Lease{Seq: r.Seq, ID: held},
		}
		p.ok(p.Flush(p.Context(), []*tablequeue.Unit{u}))
		if u.Lost {
			p.Errorf("the lease of %q is lost", r.ID)
		}
	}
}

// renews renews the lease of a row of "in" for an hour.
func (p *peer) renews(r tablequeue.Claimed) {
	p.Helper()
	lost, err := p.Renew(p.Context(), "in", []tablequeue.Lease{{Seq: r.Seq, ID: held}}, time.Hour)
	p.ok(err)
	if lost[0] {
		p.Errorf("the lease of %q is lost", r.ID)
	}
}

// After the clock was set back, each message that was ready is received at once, also from a queue
// in which the step was not found. Messages that are delayed afterwards are delayed. A lease of a
// process that has ended is no longer than before, and a lease of a living process is not lost.
func TestAClockThatIsSetBackHidesNothing(t *testing.T) {
	m := &machine{path: temp(t)}
	other, p := m.peer(t), m.peer(t)
	p.insert("in", 0, "abandoned")
	other.claims("in", "abandoned") // by a process that ends
	p.insert("in", 0, "live")
	live := p.claims("in", "live")
	p.insert("in", 0, "1", "2", "timer 1")
	p.insert("in", 30*time.Minute, "later", "timer 2")
	p.insert("other", 0, "3", "4")

	m.step(-time.Hour)
	ready := p.claims("in", "1", "2", "timer 1")
	if n := p.count("other"); n != 2 {
		p.Errorf("%d rows of the other queue are visible, want 2", n)
	}
	p.claims("other", "3", "4")
	other.claims("in")
	p.renews(live[0])
	p.insert("in", 10*time.Minute, "delayed")
	p.claims("in")
	other.claims("in")
	p.completes(append(ready, live...))

	m.step(61 * time.Second) // the process has ended a minute ago
	again := p.claims("in", "abandoned")
	if n := again[0].Count; n != 2 {
		t.Errorf("the abandoned message has delivery count %d, want 2", n)
	}
	p.completes(again)
	m.step(9 * time.Minute)
	p.completes(p.claims("in", "delayed"))
	m.step(79 * time.Minute)
	p.claims("in")
	m.step(time.Minute)
	p.completes(p.claims("in", "later", "timer 2"))
	if n := strings.Count(p.log.String(), "the clock of the database has been set back"); n != 1 {
		t.Errorf("%d lines in the log, want 1:\n%s", n, p.log.String())
	}
}

// count returns the number of visible rows of a queue.
func (p *peer) count(queue string) int64 {
	p.Helper()
	stats, err := p.Inspect(p.Context(), queue)
	p.ok(err)
	return stats.Ready
}

// Many rows are made visible by several claims, so that no transaction is long.
func TestAStepBackIsMendedInParts(t *testing.T) {
	m := &machine{path: temp(t)}
	p := m.peer(t)
	const rows = maxRestored + 10
	execute(t, mine(t, m.path), `
		with recursive n (i) as (select 1 union all select i + 1 from n where i < ?1)
		insert into holdfast_messages (queue, headers) select 'in', '{}' from n`, rows)
	m.step(-time.Hour)
	for i, want := range []int64{maxRestored - 1, rows - 2} {
		c := tablequeue.Claim{Queue: "in", Limit: 1, Lease: held, For: time.Minute, Owner: "me"}
		claimed, _, err := p.Claim(p.Context(), c, nil)
		p.ok(err)
		p.completes(claimed)
		if n := p.count("in"); n != want {
			t.Errorf("after claim %d, %d rows are visible, want %d", i, n, want)
		}
	}
}

// After the clock was set forward, delayed messages and those with leases are received early, once
// each. A lease that is renewed first is not lost.
func TestAClockThatIsSetForwardEndsDelays(t *testing.T) {
	m := &machine{path: temp(t)}
	other, p := m.peer(t), m.peer(t)
	p.insert("in", 0, "abandoned")
	other.claims("in", "abandoned") // by a process that ends
	p.insert("in", 0, "live")
	live := p.claims("in", "live")
	p.insert("in", 0, "1", "2")
	p.insert("in", 30*time.Minute, "soon", "timer 1")
	p.insert("in", 2*time.Hour, "later")

	m.step(time.Hour)
	p.renews(live[0])
	rows := p.claims("in", "1", "2", "abandoned", "soon", "timer 1")
	other.claims("in")
	p.completes(append(rows, live...))
	m.step(59 * time.Minute)
	p.claims("in")
	m.step(time.Minute)
	p.completes(p.claims("in", "later"))
}

// A claim of a queue without visible rows takes no lock, also when the clock was set forward.
func TestAClaimOfAnEmptyQueueTakesNoLock(t *testing.T) {
	m := &machine{path: temp(t)}
	p := m.peer(t)
	p.insert("in", 2*time.Hour, "later")
	tx, err := mine(t, m.path).BeginTx(t.Context(), nil) // which locks the file
	p.ok(err)
	defer tx.Rollback()
	for range 3 {
		p.claims("in")
		p.claims("other")
		m.step(10 * time.Minute)
	}
}

// A receiver that waits for a row claims again at least each second, and so meets a step.
func TestAWaitingReceiverMeetsAStepOfTheClock(t *testing.T) {
	m := &machine{path: temp(t)}
	p := m.peer(t)
	p.insert("in", 30*time.Minute, "later")
	wall, reads := p.clock.wall, atomic.Int64{}
	p.clock.wall = func() time.Time {
		if reads.Add(1) == 14 { // by the seventh claim: nothing wakes the receiver any more
			m.step(time.Hour)
		}
		return wall()
	}
	conn := tablequeue.Open(p.parts(), tablequeue.Config{Flushers: 1})
	t.Cleanup(func() { _ = conn.Close() })
	if id := receive(t, receiver(t, conn, "in")).Message().ID; id != "later" {
		t.Errorf("received %q", id)
	}
}

package postgres

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

// A step is found from the server's time and this process's, however long a claim takes.
func TestAStepOfTheServersClockIsFound(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		pause, took time.Duration // until the second claim, and of both
		server      time.Duration // between the claims
		step        time.Duration
		back        bool
	}{
		"no step":          {pause: time.Second, server: time.Second},
		"a slow claim":     {pause: time.Second, took: 30 * time.Second, server: time.Second},
		"a slow answer":    {pause: time.Second, took: 30 * time.Second, server: 61 * time.Second},
		"little back":      {pause: time.Second, server: -4 * time.Second},
		"back":             {pause: time.Second, server: -3599 * time.Second, step: -time.Hour, back: true},
		"back by 10 s":     {pause: 20 * time.Second, server: 10 * time.Second, step: -10 * time.Second, back: true},
		"back, found late": {pause: time.Minute, server: -3540 * time.Second, step: -time.Hour},
		"little forward":   {pause: time.Second, server: 6 * time.Second},
		"forward":          {pause: time.Second, server: 3601 * time.Second, step: time.Hour},
		"forward and slow": {pause: time.Second, took: time.Second, server: 3603 * time.Second, step: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			var c serverClock
			here, there := time.Now(), time.Unix(1e9, 0)
			if step, _ := c.observe(there, here, here.Add(tt.took)); step != 0 {
				t.Errorf("the first claim has found a step of %v", step)
			}
			asked := here.Add(tt.took + tt.pause)
			answered := asked.Add(tt.took)
			step, back := c.observe(there.Add(tt.server), asked, answered)
			if step != tt.step || back != tt.back {
				t.Errorf("a step of %v (back: %t), want %v (%t)", step, back, tt.step, tt.back)
			}
			want := stepBack{}
			if tt.back {
				want = stepBack{1, -tt.step, there.Add(tt.pause), answered}
			}
			if back := c.lastBack(); back != want {
				t.Errorf("the last step back is %v, want %v", back, want)
			}
		})
	}
}

// After the server's clock was set back, each message that was ready is received at once, also from
// a queue in which the step was not found. Messages that are delayed afterwards are delayed, and a
// lease of a process that has ended is no longer than before.
func TestAClockThatIsSetBackHidesNothing(t *testing.T) {
	node, clock := brokertest.ClockPostgres(t)
	w := newWorldAt(t, node.URL, "in", "other")
	const lease = 3 * time.Second
	c, dead := w.openAs(Transport{Lease: lease}), w.openAs(Transport{Lease: lease})
	in, other := receiver(t, c, "in"), receiver(t, c, "other")
	nothing(t, in)
	nothing(t, other)

	send(t, dead, to("in", msg("leased")))
	leased := receive(t, receiver(t, dead, "in"), 1)[0]
	want := []string{"delayed", "leased"}
	for i := range 20 {
		id := fmt.Sprint(i)
		want = append(want, id)
		send(t, dead, to("in", msg(id)), to("other", msg(id)))
	}
	clock.Set(-time.Hour)
	receive(t, other, 20)

	delayed, later := to("in", msg("delayed")), to("in", msg("later"))
	delayed.After, later.After = 2*time.Second, 30*time.Minute
	send(t, c, delayed, later)
	began := time.Now()
	at := map[string]time.Duration{}
	for _, d := range receive(t, in, len(want)) {
		at[d.Message().ID] = time.Since(began)
		ok(t, d.Complete(t.Context()))
	}
	isErr(t, leased.Complete(t.Context()), transport.ErrLeaseLost)
	got := slices.Sorted(maps.Keys(at))
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("received are %q, want %q", got, want)
	}
	if at["delayed"] < 1900*time.Millisecond {
		t.Errorf("a message that was delayed for 2 s was received after %v", at["delayed"])
	}
}

// A claim of rows that have been visible for long reports the server's time, not that of the rows.
func TestABacklogIsNoStepOfTheClock(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	s := w.store()
	send(t, w.open(), to("in", msg("1")), to("in", msg("2")))
	claim := func(lease int64) {
		t.Helper()
		c := tablequeue.Claim{Queue: "in", Limit: 1, Lease: lease, For: time.Minute, Owner: "test"}
		rows, _, err := s.Claim(t.Context(), c, nil)
		ok(t, err)
		if len(rows) != 1 {
			t.Fatalf("%d rows", len(rows))
		}
	}
	claim(1)
	seen := s.clock.seen
	w.exec(`UPDATE %sin SET visible_at = now() - interval '1 hour' WHERE lease_id IS NULL`)
	claim(2)
	if back := s.clock.lastBack(); back.number != 0 || s.clock.seen.Before(seen) {
		t.Errorf("the server's time is %v after %v, and the last step back %+v", s.clock.seen, seen, back)
	}
}

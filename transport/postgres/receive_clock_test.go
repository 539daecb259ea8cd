package postgres

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

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
	s.clock.Restore = func(context.Context, string, dialect.StepBack) (int64, error) {
		t.Error("a step back was found")
		return 0, nil
	}
	w.exec(`UPDATE %sin SET visible_at = now() - interval '1 hour' WHERE lease_id IS NULL`)
	claim(2)
}

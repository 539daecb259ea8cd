package sqlserver

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
)

// After the server's clock was set back, rows that were visible are made visible in each queue.
func TestAClockThatIsSetBackHidesNothing(t *testing.T) {
	now := time.Unix(1e9, 0)
	back := claimed(now.Add(-time.Hour), time.Hour.Microseconds())
	first := claimed(now, nil)
	first.then = &back
	f, s := newFake(t, map[string]answer{
		"[a]": claimed(now, nil), "[b]": first, "UPDATE hidden": numbers(2),
	})
	for i, want := range []struct {
		queue string
		next  time.Duration
	}{{"a", 0}, {"b", 0}, {"b", time.Microsecond}, {"b", time.Hour}} {
		c := tablequeue.Claim{Queue: want.queue, Limit: 1, For: time.Minute}
		rows, next, err := s.Claim(t.Context(), c, nil)
		if err != nil || len(rows) != 0 || next != want.next {
			t.Errorf("claim %d: %d rows, next %v, %v, want next %v", i, len(rows), next, err, want.next)
		}
	}
	var queues []string
	for _, a := range f.take() {
		if !strings.Contains(a.text, "UPDATE hidden") {
			continue
		}
		queues = append(queues, a.text[strings.Index(a.text, "[dbo]"):][:len("[dbo].[a]")])
		before := time.UnixMicro(a.args["before"].(int64))
		if before.Before(now) || before.After(now.Add(time.Minute)) {
			t.Errorf("rows are restored that were visible at %v, want %v", before, now)
		}
		by, leases := a.args["by"].(int64), a.args["leases"].(int64)
		if by > -time.Hour.Microseconds() || leases != -by/2 {
			t.Errorf("leases over %d µs are changed by %d, want an hour", leases, by)
		}
	}
	slices.Sort(queues)
	if want := []string{"[dbo].[a]", "[dbo].[b]"}; !slices.Equal(queues, want) {
		t.Errorf("restored are the rows of %q, want %q", queues, want)
	}
}

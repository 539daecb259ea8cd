package cron

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func TestNextOnGrid(t *testing.T) {
	const every = 7 * time.Second
	for _, test := range []struct {
		after time.Duration
		want  time.Duration
	}{
		{-time.Hour, 0}, {-1, 0}, {0, every}, {1, every}, {every - 1, every}, {every, 2 * every}, {70 * time.Second, 77 * time.Second},
	} {
		if got := NextOnGrid(noon, every, noon.Add(test.after)); !got.Equal(noon.Add(test.want)) {
			t.Errorf("after first + %v: first + %v, want + %v", test.after, got.Sub(noon), test.want)
		}
	}
	// A time.Duration has no room for the years from 1 to 2026.
	for _, every := range []time.Duration{1, time.Second, 300 * 24 * time.Hour, 1<<63 - 1} {
		got := NextOnGrid(time.Time{}, every, noon)
		if !got.After(noon) || got.Add(-every).After(noon) {
			t.Errorf("every %v: %v, want the first after %v", every, got, noon)
		}
	}
}

func TestGridWithoutIntervalHasNoTimes(t *testing.T) {
	for _, every := range []time.Duration{0, -time.Second} {
		if got := NextOnGrid(noon, every, noon); !got.IsZero() {
			t.Errorf("every %v: %v, want the zero time", every, got)
		}
	}
}

func times(at ...time.Duration) []time.Time {
	var all []time.Time
	for _, d := range at {
		all = append(all, noon.Add(d))
	}
	return all
}

func equal(a, b []time.Time) bool { return slices.EqualFunc(a, b, time.Time.Equal) }

func TestMissed(t *testing.T) {
	next := func(after time.Time) time.Time { return NextOnGrid(noon, time.Minute, after) }
	for _, test := range []struct {
		last, now time.Duration
		most      int
		want      []time.Time
		dropped   bool
		next      time.Duration
	}{
		{0, 59 * time.Second, 100, nil, false, time.Minute},
		{0, time.Minute, 100, times(time.Minute), false, 2 * time.Minute},
		{0, 150 * time.Second, 100, times(time.Minute, 2*time.Minute), false, 3 * time.Minute},
		{0, 150 * time.Second, 2, times(time.Minute, 2*time.Minute), false, 3 * time.Minute},
		{0, 150 * time.Second, 1, times(2 * time.Minute), true, 3 * time.Minute},
		{0, 150 * time.Second, 0, nil, true, 3 * time.Minute},
		{0, time.Second, 0, nil, false, time.Minute},
		{0, time.Hour, 3, times(58*time.Minute, 59*time.Minute, time.Hour), true, 61 * time.Minute},
		{time.Hour, 0, 3, nil, false, 61 * time.Minute}, // the clock was set back
	} {
		b := Missed(next, noon.Add(test.last), noon.Add(test.now), test.most)
		if !equal(b.Missed, test.want) || b.Dropped != test.dropped || !b.Next.Equal(noon.Add(test.next)) {
			t.Errorf("from %v to %v, at most %d: %+v, want %v, dropped %v, next %v",
				test.last, test.now, test.most, b, test.want, test.dropped, noon.Add(test.next))
		}
	}
}

func TestNothingMissedOfAScheduleThatEnds(t *testing.T) {
	once := func(after time.Time) time.Time {
		if after.Before(noon) {
			return noon
		}
		return time.Time{}
	}
	b := Missed(once, noon.Add(-time.Hour), noon.Add(time.Hour), 10)
	if !equal(b.Missed, times(0)) || b.Dropped || !b.Next.IsZero() {
		t.Errorf("%+v, want one occurrence and no next", b)
	}
}

// A schedule of each second that was off for a year has missed 31 million occurrences.
func TestMissedOfAYearIsBounded(t *testing.T) {
	everySecond, nightly := parsed(t, "* * * * * *"), parsed(t, "* 0-9 2 * * *")
	for name, next := range map[string]func(time.Time) time.Time{
		"every second": func(after time.Time) time.Time { return everySecond.Next(after, time.UTC) },
		"dense nights": func(after time.Time) time.Time { return nightly.Next(after, time.UTC) },
		"grid":         func(after time.Time) time.Time { return NextOnGrid(noon, time.Second, after) },
	} {
		t.Run(name, func(t *testing.T) {
			const most = 100
			calls := 0
			counted := func(after time.Time) time.Time {
				calls++
				return next(after)
			}
			now := noon.AddDate(1, 0, 0).Add(500 * time.Millisecond)
			b := Missed(counted, noon, now, most)
			if calls > 64*most {
				t.Errorf("next was called %d times, want at most %d", calls, 64*most)
			}
			if len(b.Missed) != most || !b.Dropped {
				t.Fatalf("%d missed, dropped %v, want %d and more", len(b.Missed), b.Dropped, most)
			}
			for i, at := range b.Missed[1:] {
				if !at.Equal(next(b.Missed[i])) {
					t.Errorf("%v follows %v", at, b.Missed[i])
				}
			}
			if after := next(b.Missed[most-1]); !after.After(now) || !after.Equal(b.Next) {
				t.Errorf("the last one is followed by %v, want the one after %v: %v", after, now, b.Next)
			}
		})
	}
}

func TestMissedAgreesWithAWalk(t *testing.T) {
	const seed = 21
	random := rand.New(rand.NewPCG(seed, seed))
	for range 200 {
		s := parsed(t, fmt.Sprintf("%d,%d */%d * * *", random.IntN(60), random.IntN(60), 1+random.IntN(23)))
		next := func(after time.Time) time.Time { return s.Next(after, time.UTC) }
		now := noon.Add(time.Duration(random.Int64N(int64(10 * 24 * time.Hour))))
		most := 1 + random.IntN(20)
		var all []time.Time
		for at := next(noon); !at.After(now); at = next(at) {
			all = append(all, at)
		}
		b := Missed(next, noon, now, most)
		if want := all[max(0, len(all)-most):]; !equal(b.Missed, want) || b.Dropped != (len(all) > most) {
			t.Errorf("%+v up to %v, at most %d: %v, dropped %v; want %v of %d", s, now, most, b.Missed, b.Dropped, want, len(all))
		}
	}
}

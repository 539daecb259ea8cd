package cron

import (
	"archive/zip"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"
	_ "time/tzdata" // the zones that the tests compute with are those of this Go release

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

var (
	firstYear = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	lastYear  = time.Date(2041, 1, 1, 0, 0, 0, 0, time.UTC)
)

// A zone is one of tzdata with its changes from 2000 to 2040.
type zone struct {
	*time.Location
	changes []change
}

// A change is the second at which a zone's offset to UTC changes.
type change struct{ at, before, after int64 }

// zones returns the zones of tzdata, one of those with equal rules.
var zones = sync.OnceValues(func() ([]*time.Location, error) {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, err
	}
	archive, err := zip.OpenReader(filepath.Join(strings.TrimSpace(string(root)), "lib", "time", "zoneinfo.zip"))
	if err != nil {
		return nil, err
	}
	defer archive.Close()
	known := make(map[string]bool)
	var all []*time.Location
	for _, f := range archive.File {
		if strings.HasSuffix(f.Name, "/") {
			continue
		}
		rules, err := fs.ReadFile(archive, f.Name)
		if err != nil {
			return nil, err
		}
		if known[string(rules)] {
			continue
		}
		known[string(rules)] = true
		location, err := time.LoadLocationFromTZData(f.Name, rules)
		if err != nil {
			return nil, err
		}
		all = append(all, location)
	}
	if len(all) < 300 {
		return nil, fmt.Errorf("%d zones, want those of tzdata", len(all))
	}
	return all, nil
})

func allZones(t *testing.T) []*time.Location {
	t.Helper()
	all, err := zones()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// oddZones skip or repeat half an hour, a midnight, or a day, or change their offset for a month
// each year.
var oddZones = []string{"Australia/Lord_Howe", "America/Sao_Paulo", "Pacific/Apia", "Africa/Casablanca", "Europe/Dublin"}

// someZones returns 24 zones that a fixed seed chooses, and the odd zones.
func someZones(t *testing.T) (some []*time.Location) {
	t.Helper()
	all := allZones(t)
	for _, i := range rand.New(rand.NewPCG(2026, 11)).Perm(len(all))[:24] {
		some = append(some, all[i])
	}
	for _, name := range oddZones {
		some = append(some, zoned(t, name))
	}
	return some
}

// changes looks at the offset every half day, and does not rely on the bounds that the time package
// returns.
func changes(location *time.Location) []change {
	offset := func(at int64) int64 {
		_, seconds := time.Unix(at, 0).In(location).Zone()
		return int64(seconds)
	}
	const step = 12 * 60 * 60
	var all []change
	before := offset(firstYear.Unix())
	for at := firstYear.Unix(); at < lastYear.Unix(); at += step {
		after := offset(at + step)
		if after == before {
			continue
		}
		i := sort.Search(step, func(i int) bool { return offset(at+int64(i)) != before })
		all = append(all, change{at + int64(i), before, after})
		before = after
	}
	return all
}

// A window is a time around changes that are close to each other.
type window struct {
	from, to int64
	changes  []change
}

func windows(all []change) []window {
	const around = 28 * 60 * 60
	var found []window
	for _, c := range all {
		if n := len(found); n > 0 && c.at-around <= found[n-1].to {
			found[n-1].to = c.at + around
			found[n-1].changes = append(found[n-1].changes, c)
			continue
		}
		found = append(found, window{c.at - around, c.at + around, []change{c}})
	}
	return found
}

// walk calls f with each minute of w and the time that the wall clock shows, both in seconds.
func (w window) walk(f func(at, wall int64)) {
	offset, next := w.changes[0].before, 0
	for at := w.from; at < w.to; at += 60 {
		for next < len(w.changes) && w.changes[next].at <= at {
			offset = w.changes[next].after
			next++
		}
		f(at, at+offset)
	}
}

// want returns the occurrences in w minute by minute: of a schedule that follows elapsed time, the
// minutes at which the wall clock fits; of fixed times, those at which it fits for the first time,
// and the ends of the gaps that contain such a time.
func (w window) want(elapsed bool, fits func(wall int64) bool) []int64 {
	var want []int64
	const margin = 2 * 24 * 60
	base := w.from + w.changes[0].before - margin*60
	shown := make([]bool, (w.to-w.from)/60+2*margin)
	last := w.from + w.changes[0].before - 60
	w.walk(func(at, wall int64) {
		index := (wall - base) / 60
		due := fits(wall) && (elapsed || !shown[index])
		shown[index] = true
		for skipped := last + 60; !elapsed && skipped < wall; skipped += 60 {
			if i := (skipped - base) / 60; !shown[i] {
				shown[i] = true
				due = due || fits(skipped)
			}
		}
		last = wall
		if due {
			want = append(want, at)
		}
	})
	return want
}

func minuteOf(wall int64) int64 { return wall / 60 % 60 }
func hourOf(wall int64) int64   { return wall / 3600 % 24 }

// Each zone of tzdata.
func TestChaosZonesHaveEachOccurrenceOnce(t *testing.T) {
	brokertest.Fault(t)
	checkOccurrences(t, allZones(t), 10_000)
	checkDates(t, allZones(t))
}

func TestZonesHaveEachOccurrenceOnce(t *testing.T) { checkOccurrences(t, someZones(t), 1000) }

// checkOccurrences compares the occurrences around the changes of zones with those that a walk by
// minutes finds, at least so many for each schedule.
func checkOccurrences(t *testing.T, locations []*time.Location, least int) {
	t.Helper()
	var zones []zone
	for _, location := range locations {
		zones = append(zones, zone{location, changes(location)})
	}
	for _, test := range []struct {
		spec    string
		elapsed bool
		fits    func(wall int64) bool
	}{
		{"30 2 * * *", false, func(wall int64) bool { return hourOf(wall) == 2 && minuteOf(wall) == 30 }},
		{"0 0 * * *", false, func(wall int64) bool { return wall%86400 == 0 }},
		{"15,45 0-3,23 * * *", false, func(wall int64) bool {
			return (hourOf(wall) <= 3 || hourOf(wall) == 23) && minuteOf(wall)%30 == 15
		}},
		{"* 2 * * *", true, func(wall int64) bool { return hourOf(wall) == 2 }},
		{"*/20 1,2 * * *", true, func(wall int64) bool {
			return (hourOf(wall) == 1 || hourOf(wall) == 2) && minuteOf(wall)%20 == 0
		}},
		{"30 * * * *", true, func(wall int64) bool { return minuteOf(wall) == 30 }},
		{"5 */2 * * *", true, func(wall int64) bool { return minuteOf(wall) == 5 && hourOf(wall)%2 == 0 }},
		{"*/7 * * * *", true, func(wall int64) bool { return minuteOf(wall)%7 == 0 }},
	} {
		t.Run(test.spec, func(t *testing.T) {
			s := parsed(t, test.spec)
			checked := 0
			for _, zone := range zones {
				for _, w := range windows(zone.changes) {
					at := time.Unix(w.from-1, 0)
					for _, want := range w.want(test.elapsed, test.fits) {
						checked++
						if at = s.Next(at, zone.Location); at.Unix() != want {
							t.Fatalf("%s: occurrence %v, want %v", zone, at, time.Unix(want, 0).In(zone.Location))
						}
					}
					if at = s.Next(at, zone.Location); at.Unix() < w.to {
						t.Fatalf("%s: occurrence %v, want none before %v", zone, at, time.Unix(w.to, 0).In(zone.Location))
					}
				}
			}
			if checked < least {
				t.Errorf("%d occurrences were checked, want more", checked)
			}
		})
	}
}

// A day that a zone skips has its occurrence too: at the end of the gap.
func TestFixedTimesOccurOnceForEachDate(t *testing.T) { checkDates(t, someZones(t)) }

func checkDates(t *testing.T, locations []*time.Location) {
	t.Helper()
	s := parsed(t, "30 2 * * *")
	days := int(lastYear.Sub(firstYear) / (24 * time.Hour))
	for _, zone := range locations {
		at := time.Date(2000, 1, 1, 0, 0, 0, 0, zone)
		end := time.Date(2041, 1, 1, 0, 0, 0, 0, zone)
		n := 0
		for {
			next := s.Next(at, zone)
			if !next.After(at) {
				t.Fatalf("%s: %v is followed by %v", zone, at, next)
			}
			if at = next; !at.Before(end) {
				break
			}
			n++
		}
		if n != days {
			t.Errorf("%s: %d occurrences from 2000 to 2040, want %d", zone, n, days)
		}
	}
}

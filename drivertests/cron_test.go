package drivertests

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // the oracles and Next compute with the same zones

	gocron "github.com/netresearch/go-cron"
	robfig "github.com/robfig/cron/v3"

	"github.com/holdfast-go/holdfast/internal/cron"
)

// randomSpec returns a text of six fields that all three parsers read alike.
func randomSpec(random *rand.Rand) string {
	names := map[string][]string{
		"month":   {"JAN", "feb", "Mar", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"},
		"weekday": {"SUN", "mon", "Tue", "WED", "THU", "FRI", "SAT"},
	}
	field := func(low, high int, named string) string {
		value := func(v int) string {
			if named != "" && random.IntN(2) == 0 && names[named][v-low] != "THU" { // go-cron takes the H of THU for a hash
				return names[named][v-low]
			}
			return fmt.Sprint(v)
		}
		item := func() string {
			from := low + random.IntN(high-low+1)
			to := from + random.IntN(high-from+1)
			step := 2 + random.IntN(high-low-1)
			switch random.IntN(8) {
			case 0, 1:
				return "*"
			case 2:
				return fmt.Sprintf("*/%d", step)
			case 3:
				return value(from) + "-" + value(to)
			case 4:
				if to > from {
					return fmt.Sprintf("%s-%s/%d", value(from), value(to), 1+random.IntN(to-from))
				}
			}
			return value(from)
		}
		items := []string{item()}
		for random.IntN(4) == 0 {
			items = append(items, item())
		}
		return strings.Join(items, ",")
	}
	return strings.Join([]string{
		field(0, 59, ""), field(0, 59, ""), field(0, 23, ""), field(1, 28, ""), field(1, 12, "month"), field(0, 6, "weekday"),
	}, " ")
}

// oracle is another library's way to the next occurrence.
type oracle func(spec string, zone *time.Location) (func(time.Time) time.Time, error)

func oracles() map[string]oracle {
	theirs := robfig.NewParser(robfig.Second | robfig.Minute | robfig.Hour | robfig.Dom | robfig.Month | robfig.Dow)
	others := gocron.MustNewParser(gocron.Second | gocron.Minute | gocron.Hour | gocron.Dom | gocron.Month | gocron.Dow | gocron.DowOrDom)
	return map[string]oracle{
		"robfig": func(spec string, zone *time.Location) (func(time.Time) time.Time, error) {
			s, err := theirs.Parse("TZ=" + zone.String() + " " + spec)
			if err != nil {
				return nil, err
			}
			return s.Next, nil
		},
		"go-cron": func(spec string, zone *time.Location) (func(time.Time) time.Time, error) {
			s, err := others.Parse("TZ=" + zone.String() + " " + spec)
			if err != nil {
				return nil, err
			}
			return s.Next, nil
		},
	}
}

func zonesOfOracles(t *testing.T) []*time.Location {
	t.Helper()
	var zones []*time.Location
	for _, name := range []string{"UTC", "Europe/Berlin", "America/New_York", "America/Sao_Paulo", "Asia/Kolkata", "Australia/Lord_Howe"} {
		zone, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		zones = append(zones, zone)
	}
	return zones
}

// steady reports whether the offset to UTC does not change between two times, nor within two days
// of them.
func steady(from, to time.Time, zone *time.Location) bool {
	const near = 48 * time.Hour
	_, end := from.Add(-near).In(zone).ZoneBounds()
	return end.IsZero() || end.After(to.Add(near))
}

// Away from changes of the clock the occurrences are those of both libraries.
func TestCronAgreesWithOtherLibraries(t *testing.T) {
	t.Parallel()
	zones := zonesOfOracles(t)
	for name, parse := range oracles() {
		t.Run(name, func(t *testing.T) {
			const seed = 21
			random := rand.New(rand.NewPCG(seed, seed))
			compared := 0
			for range 5000 {
				spec, zone := randomSpec(random), zones[random.IntN(len(zones))]
				next, err := parse(spec, zone)
				if err != nil {
					t.Fatal(err)
				}
				ours, err := cron.Parse(spec)
				if err != nil {
					t.Fatal(err)
				}
				at := time.Unix(946_684_800+random.Int64N(40*365*86_400), random.Int64N(1e9)).In(zone)
				for range 4 {
					want, got := next(at), ours.Next(at, zone)
					if want.IsZero() || !steady(at, want, zone) {
						break
					}
					if compared++; !got.Equal(want) {
						t.Fatalf("%q in %s after %v: %v, want %v", spec, zone, at, got, want)
					}
					at = want
				}
			}
			if compared < 5000 {
				t.Errorf("%d occurrences were compared, want more", compared)
			}
		})
	}
}

// Wildcard hours follow elapsed time, as those of go-cron do, where the clock changes by whole
// hours.
func TestCronAgreesOnWildcardHoursWhereClocksChange(t *testing.T) {
	t.Parallel()
	parse := oracles()["go-cron"]
	for _, zone := range zonesOfOracles(t) {
		if zone.String() == "Australia/Lord_Howe" || zone.String() == "America/Sao_Paulo" {
			continue // go-cron does not handle half an hour, nor a day without midnight
		}
		for _, spec := range []string{"0 */7 * * * *", "0 30 * * * *", "0 0,20 * * * *"} {
			next, err := parse(spec, zone)
			if err != nil {
				t.Fatal(err)
			}
			ours, err := cron.Parse(spec)
			if err != nil {
				t.Fatal(err)
			}
			at := time.Date(2026, 1, 1, 0, 0, 0, 0, zone)
			for at.Year() < 2027 {
				want, got := next(at), ours.Next(at, zone)
				if !got.Equal(want) {
					t.Fatalf("%q in %s after %v: %v, want %v", spec, zone, at, got, want)
				}
				at = want
			}
		}
	}
}

package cron

import (
	"testing"
	"time"
)

func BenchmarkNext(b *testing.B) {
	for _, spec := range []string{"* * * * * *", "*/5 * * * *", "30 2 * * *", "0 0 29 2 *"} {
		for _, zone := range []string{"UTC", "Europe/Berlin"} {
			b.Run(spec+" "+zone, func(b *testing.B) {
				s, zone := parsed(b, spec), zoned(b, zone)
				at := noon
				for b.Loop() {
					if at = s.Next(at, zone); at.Year() > 2100 {
						at = noon
					}
				}
			})
		}
	}
}

func BenchmarkParse(b *testing.B) {
	for b.Loop() {
		if _, err := Parse("0 0,30 8-18/2 * JAN-JUN MON-FRI"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkMissedOfAYear(b *testing.B) {
	s := parsed(b, "* * * * * *")
	next := func(after time.Time) time.Time { return s.Next(after, time.UTC) }
	for b.Loop() {
		Missed(next, noon, noon.AddDate(1, 0, 0), 100)
	}
}

package cron

import (
	"strings"
	"testing"
	"time"
)

func FuzzNext(f *testing.F) {
	names := []string{"UTC", "Europe/Berlin", "Australia/Lord_Howe", "Pacific/Apia", "America/Sao_Paulo", "Africa/Casablanca"}
	for i, spec := range []string{
		"30 2 * * *", "*/15 * * * *", "0 0 29 2 *", "0 0 13 * FRI", "* * * * * *", "0 0 30 2 *", "5/7 1-3 ? JAN-MAR 7", "", "@daily",
	} {
		f.Add(spec, int64(1_774_000_000), i)
	}
	f.Fuzz(func(t *testing.T, spec string, unix int64, index int) {
		s, err := Parse(spec)
		if err != nil {
			if s != (Schedule{}) || !strings.HasPrefix(err.Error(), "cron ") {
				t.Errorf("error %v beside %+v", err, s)
			}
			return
		}
		zone := zoned(t, names[uint(index)%uint(len(names))])
		at := time.Unix(unix%(1<<34), 0) // until the year 2514
		for range 5 {
			next := s.Next(at, zone)
			if next.IsZero() {
				t.Fatalf("%q has no occurrence after %v in %s", spec, at, zone)
			}
			if !next.After(at) || next.Nanosecond() != 0 {
				t.Fatalf("%q in %s: %v is followed by %v", spec, zone, at, next)
			}
			if between := at.Add(next.Sub(at) / 2); !s.Next(between, zone).Equal(next) {
				t.Fatalf("%q in %s: %v is followed by %v, %v by another time", spec, zone, at, next, between)
			}
			at = next
		}
	})
}

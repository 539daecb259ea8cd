package header_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/header"
)

func TestTimesAreWrittenInUTCWithMicroseconds(t *testing.T) {
	berlin := time.FixedZone("CET", 3600)
	for want, given := range map[string]time.Time{
		"2026-01-02 03:04:05:000000 Z": time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		"2026-01-02 03:04:05:000001 Z": time.Date(2026, 1, 2, 3, 4, 5, 1999, time.UTC),
		"2025-12-31 23:30:00:999999 Z": time.Date(2026, 1, 1, 0, 30, 0, 999999999, berlin),
		"0000-01-01 00:00:00:000000 Z": time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC),
		"0001-01-01 00:00:00:000000 Z": {},
		"9999-12-31 23:59:59:999999 Z": time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC),
	} {
		if got := header.FormatTime(given); got != want {
			t.Errorf("FormatTime(%v) = %q, want %q", given, got, want)
		}
	}
}

func TestTimesAreReadBack(t *testing.T) {
	want := time.Date(2026, 2, 28, 23, 59, 59, 123456000, time.UTC)
	got, err := header.ParseTime("2026-02-28 23:59:59:123456 Z")
	if err != nil || got != want {
		t.Errorf("ParseTime = %v, %v, want %v", got, err, want)
	}
}

func TestOtherFormsOfTimeAreRefused(t *testing.T) {
	for _, s := range []string{
		"",
		"2026-01-02T03:04:05Z",
		"2026-01-02 03:04:05:000000",
		"2026-01-02 03:04:05:000000 z",
		"2026-01-02 03:04:05:00000 Z",
		"2026-01-02 03:04:05:0000000 Z",
		"2026-01-02 03:04:05.000000 Z",
		"2026-01-02 03:04:05:00a000 Z",
		"2026-01-02 03:04:05:-00001 Z",
		"2026-13-02 03:04:05:000000 Z",
		"2026-02-30 03:04:05:000000 Z",
		"2026-01-02 24:04:05:000000 Z",
		"2026-01-02 03:60:05:000000 Z",
		"2026-01-02 03:04:60:000000 Z",
		"2026-01-02  3:04:05:000000 Z",
		"2026-01-02 3:04:05.1:000000 Z",
		"26-01-02 03:04:05.12:000000 Z",
		"2026-1-02 03:04:05.1:000000 Z",
		"+026-01-02 03:04:05:000000 Z",
	} {
		if got, err := header.ParseTime(s); err == nil {
			t.Errorf("ParseTime(%q) = %v, want an error", s, got)
		}
	}
}

func TestDurationsAreWrittenAsTimeSpans(t *testing.T) {
	for want, given := range map[string]time.Duration{
		"00:00:00":                 0,
		"00:00:10":                 10 * time.Second,
		"00:00:00.0000001":         100,
		"-00:00:01.5000000":        -1500 * time.Millisecond,
		"23:59:59.9999999":         24*time.Hour - 1,
		"1.00:00:00":               24 * time.Hour,
		"12.03:04:05.6789012":      12*24*time.Hour + 3*time.Hour + 4*time.Minute + 5*time.Second + 678901234,
		"106751.23:47:16.8547758":  math.MaxInt64,
		"-106751.23:47:16.8547758": math.MinInt64,
	} {
		if got := header.FormatDuration(given); got != want {
			t.Errorf("FormatDuration(%d) = %q, want %q", given, got, want)
		}
	}
}

func TestFormatTimeAllocatesItsTextOnly(t *testing.T) {
	now, text := time.Now(), ""
	if n := testing.AllocsPerRun(100, func() { text = header.FormatTime(now) }); n > 1 {
		t.Errorf("%v allocations for %q", n, text)
	}
}

func TestParseTimeAllocatesNothing(t *testing.T) {
	text, sent := header.FormatTime(time.Now()), time.Time{}
	if n := testing.AllocsPerRun(100, func() { sent, _ = header.ParseTime(text) }); n > 0 {
		t.Errorf("%v allocations for %v", n, sent)
	}
}

// A parsed time is written as it was, and no input panics.
func FuzzParseTime(f *testing.F) {
	for _, s := range []string{
		"2026-01-02 03:04:05:678901 Z", "0000-01-01 00:00:00:000000 Z", "9999-12-31 23:59:59:999999 Z",
		"2026-01-02 3:04:05.1:000000 Z", "", "2024-02-29 00:00:00:000000 Z",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := header.ParseTime(s)
		if err != nil {
			return
		}
		if again := header.FormatTime(got); again != s {
			t.Errorf("ParseTime(%q) = %v, which is written %q", s, got, again)
		}
	})
}

// Every time that the form can hold comes back to the microsecond.
func FuzzFormatTime(f *testing.F) {
	f.Add(int64(0), int64(0))
	f.Add(int64(1767323045), int64(678901234))
	f.Add(int64(-62167219200), int64(1))         // year 0
	f.Add(int64(253402300799), int64(999999999)) // the last second of 9999
	f.Fuzz(func(t *testing.T, sec, nsec int64) {
		want := time.Unix(sec, nsec).UTC()
		if want.Year() < 0 || want.Year() > 9999 {
			return // not a year of four digits
		}
		got, err := header.ParseTime(header.FormatTime(want))
		if err != nil {
			t.Fatal(err)
		}
		if d := want.Sub(got); d < 0 || d >= time.Microsecond {
			t.Errorf("%v came back as %v", want, got)
		}
	})
}

func BenchmarkFormatTime(b *testing.B) {
	now := time.Now()
	b.ReportAllocs()
	for b.Loop() {
		_ = header.FormatTime(now)
	}
}

func BenchmarkParseTime(b *testing.B) {
	s := header.FormatTime(time.Now())
	b.ReportAllocs()
	for b.Loop() {
		if _, err := header.ParseTime(s); err != nil {
			b.Fatal(err)
		}
	}
}

func ExampleFormatTime() {
	t := time.Date(2026, 1, 2, 4, 4, 5, 678901234, time.FixedZone("CET", 3600))
	fmt.Println(header.FormatTime(t))
	// Output: 2026-01-02 03:04:05:678901 Z
}

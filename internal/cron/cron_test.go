package cron

import (
	"strings"
	"testing"
	"time"
)

func parsed(t testing.TB, spec string) Schedule {
	t.Helper()
	s, err := Parse(spec)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func zoned(t testing.TB, name string) *time.Location {
	t.Helper()
	zone, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return zone
}

func TestParseRejects(t *testing.T) {
	for _, test := range []struct{ spec, want string }{
		{"", "0 fields: want minute, hour"},
		{"* * * *", "4 fields"},
		{"* * * * * * *", "7 fields"},
		{"@daily", "@daily are not supported"},
		{"TZ=UTC 0 0 * * *", `"TZ=UTC" is no field`},
		{"60 * * * *", "minute: 60 is not in 0-59"},
		{"60 0 0 * * *", "second: 60 is not in 0-59"},
		{"0 24 * * *", "hour: 24 is not in 0-23"},
		{"0 0 0 * *", "day of month: 0 is not in 1-31"},
		{"0 0 32 * *", "day of month: 32 is not in 1-31"},
		{"0 0 * 13 *", "month: 13 is not in 1-12"},
		{"0 0 * JANUARY *", `month: "JANUARY" is neither a number in 1-12 nor one of JAN, FEB`},
		{"0 0 * * 8", "day of week: 8 is not in 0-7"},
		{"0 0 * * MOON", `day of week: "MOON" is neither`},
		{"0 0 L * *", `day of month: "L" is not a number in 1-31`},
		{"0 0 15W * *", `day of month: "15W" is not`},
		{"0 0 * * FRI#2", `day of week: "FRI#2" is neither`},
		{"? * * * *", `minute: "?" is for days only`},
		{"1,, * * * *", `minute "1,,": an item is empty`},
		{"1,61 * * * *", `minute "1,61": 61 is not in 0-59`},
		{"-5 * * * *", `minute: "" is not a number`},
		{"+5 * * * *", `minute: "+5" is not a number`},
		{"5- * * * *", `minute: "" is not a number`},
		{"1-2-3 * * * *", `minute: "2-3" is not a number`},
		{"*-5 * * * *", `minute: "*-5" has "*" in a range`},
		{"30-10 * * * *", `minute: range "30-10" begins after its end: write two ranges, such as 30-59,0-10`},
		{"0 0 * DEC-JAN *", `month: range "DEC-JAN" begins after its end: write two ranges, such as DEC-12,1-JAN`},
		{"*/0 * * * *", `minute: "*/0" has the step "0"`},
		{"*/x * * * *", `minute: "*/x" has the step "x"`},
		{"*/ * * * *", `minute: "*/" has the step ""`},
		{"*/5/5 * * * *", `minute: "*/5/5" has the step "5/5"`},
		{"*/90 * * * *", `minute: "*/90" has the step 90: want at most 59`},
		{"99999999999999999999 * * * *", "minute: 99999999999999999999 is not in 0-59"},
		{"0 0 30 2 *", `day of month "30": no month of "2" has such a day`},
		{"0 0 31 FEB,APR,JUN,SEP,NOV ?", `day of month "31": no month of`},
		{"61 25 * * *", "hour: 25 is not in 0-23"},
		{"0 0 * * \xff", `day of week: "\xff" is neither`},
	} {
		s, err := Parse(test.spec)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("Parse(%q): error %v, want %q in it", test.spec, err, test.want)
		}
		if s != (Schedule{}) {
			t.Errorf("Parse(%q) = %v beside an error", test.spec, s)
		}
	}
}

func TestEqualTexts(t *testing.T) {
	for _, test := range [][2]string{
		{"30 2 * * *", "0 30 2 * * *"},
		{"0 0 1 JAN *", "0 0 1 1 ?"},
		{"0 0 ? jan-Mar sun", "0 0 * 1,2,3 0"},
		{"0 0 * * 0", "0 0 * * 7"},
		{"0 0 * * FRI-SUN", "0 0 * * 0,5,6"},
		{"0 0 * * 5-7", "0 0 * * 0,5,6"},
		{"0 0 * * 7-2", "0 0 * * 0-2"},
		{"0 0 * * 1/2", "0 0 * * 1,3,5"},
		{"0 0 * * */2", "0 0 * * 0,2,4,6"},
		{"0 0 * * */1", "0 0 * * *"},
		{"50/5 * * * *", "50-59/5 * * * *"},
		{" 0\t0  * * * ", "0 0 * * *"},
		{"1,1-3,2 0 * * *", "1-3 0 * * *"},
		{"05 00 * * *", "5 0 * * *"},
	} {
		if a, b := parsed(t, test[0]), parsed(t, test[1]); a != b {
			t.Errorf("%q and %q differ: %+v, %+v", test[0], test[1], a, b)
		}
	}
}

func TestNext(t *testing.T) {
	for _, test := range []struct{ spec, zone, after, want string }{
		{"* * * * *", "UTC", "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"},
		{"* * * * * *", "UTC", "2026-01-01T00:00:00.5Z", "2026-01-01T00:00:01Z"},
		{"0 0 * * *", "UTC", "2025-12-31T23:59:59.999Z", "2026-01-01T00:00:00Z"},
		{"0 0 * * *", "UTC", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"},
		{"59 59 23 31 12 *", "UTC", "2026-01-01T00:00:00Z", "2026-12-31T23:59:59Z"},
		{"0 0 29 2 *", "UTC", "2096-03-01T00:00:00Z", "2104-02-29T00:00:00Z"},
		{"*/5 0 29 2 *", "Europe/Berlin", "2096-03-01T00:00:00Z", "2104-02-29T00:00:00+01:00"},
		{"0 0 13 * FRI", "UTC", "2026-11-07T00:00:00Z", "2026-11-13T00:00:00Z"},
		{"0 0 13 * MON", "UTC", "2026-11-07T00:00:00Z", "2026-11-09T00:00:00Z"}, // a day fits by either
		{"0 0 30 2 MON", "UTC", "2026-01-01T00:00:00Z", "2026-02-02T00:00:00Z"}, // so this one is reachable
		{"0 0 * * MON", "UTC", "2026-11-07T00:00:00Z", "2026-11-09T00:00:00Z"},
		{"0 0 */2 * MON", "UTC", "2026-11-07T00:00:00Z", "2026-11-09T00:00:00Z"},
		{"0 12 31 * *", "UTC", "2026-11-01T00:00:00Z", "2026-12-31T12:00:00Z"},
		{"0 0 1 1 *", "UTC", "1960-06-01T00:00:00Z", "1961-01-01T00:00:00Z"},

		// The zone decides, not the location of the time.
		{"0 9 * * *", "America/New_York", "2026-07-01T12:00:00Z", "2026-07-01T09:00:00-04:00"},

		// Berlin skips 02:00 to 03:00 on 29 March 2026, and shows it twice on 25 October.
		{"30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-29T03:00:00+02:00"},
		{"30 2 * * *", "Europe/Berlin", "2026-03-29T01:00:00Z", "2026-03-30T02:30:00+02:00"},
		{"0,30 2,3 * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", "2026-03-29T03:00:00+02:00"},
		{"0,30 2,3 * * *", "Europe/Berlin", "2026-03-29T01:00:00Z", "2026-03-29T03:30:00+02:00"},
		{"* 30 2 * * *", "Europe/Berlin", "2026-03-29T01:00:00Z", "2026-03-30T02:30:00+02:00"},
		{"30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", "2026-10-25T02:30:00+02:00"},
		{"30 2 * * *", "Europe/Berlin", "2026-10-25T00:30:00Z", "2026-10-26T02:30:00+01:00"},
		{"30 2 * * *", "Europe/Berlin", "2026-10-25T01:10:00Z", "2026-10-26T02:30:00+01:00"}, // after the first time
		{"*/30 2 * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", "2026-03-30T02:00:00+02:00"},
		{"*/30 2 * * *", "Europe/Berlin", "2026-10-25T00:30:00Z", "2026-10-25T02:00:00+01:00"},
		{"30 * * * *", "Europe/Berlin", "2026-10-25T00:30:00Z", "2026-10-25T02:30:00+01:00"},
		{"30 * * * *", "Europe/Berlin", "2026-03-29T00:30:00Z", "2026-03-29T03:30:00+02:00"},

		// São Paulo skipped midnight, Lord Howe half an hour, Samoa 30 December 2011.
		{"0 0 * * *", "America/Sao_Paulo", "2018-11-03T12:00:00Z", "2018-11-04T01:00:00-02:00"},
		{"15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00:00Z", "2026-10-04T02:30:00+11:00"},
		{"0 12 * * *", "Pacific/Apia", "2011-12-29T23:00:00Z", "2011-12-31T00:00:00+14:00"},
		{"0 12 30 12 *", "Pacific/Apia", "2011-12-01T00:00:00Z", "2011-12-31T00:00:00+14:00"},
		{"*/10 12 30 12 *", "Pacific/Apia", "2011-12-01T00:00:00Z", "2012-12-30T12:00:00+14:00"},

		// Monrovia's offset had seconds until 1972.
		{"0 0 * * *", "Africa/Monrovia", "1971-06-01T12:00:00Z", "1971-06-02T00:44:30Z"},
	} {
		after, err := time.Parse(time.RFC3339Nano, test.after)
		if err != nil {
			t.Fatal(err)
		}
		want, err := time.Parse(time.RFC3339, test.want)
		if err != nil {
			t.Fatal(err)
		}
		got := parsed(t, test.spec).Next(after, zoned(t, test.zone))
		if !got.Equal(want) || got.Location().String() != test.zone {
			t.Errorf("%q in %s after %s: %v, want %v", test.spec, test.zone, test.after, got, want)
		}
	}
}

func TestZeroScheduleHasNoOccurrence(t *testing.T) {
	var s Schedule
	if got := s.Next(time.Now(), time.UTC); !got.IsZero() {
		t.Errorf("an occurrence at %v", got)
	}
}

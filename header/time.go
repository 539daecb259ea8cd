package header

import (
	"fmt"
	"strconv"
	"time"
)

// timeForm is a time in the form of NServiceBus, "yyyy-MM-dd HH:mm:ss:ffffff Z", UTC and
// fixed width (DateTimeOffsetHelper.cs). The colon before the fraction is why time.Format
// cannot write it.
const timeForm = "2006-01-02 15:04:05:000000 Z"

// FormatTime returns t as header text: UTC, microseconds, 28 characters for the years 0 to 9999, for instance
// "2026-01-02 03:04:05:000000 Z".
func FormatTime(t time.Time) string {
	var buf [len(timeForm)]byte
	return string(AppendTime(buf[:0], t))
}

// AppendTime appends the header text of t to b.
func AppendTime(b []byte, t time.Time) []byte {
	t = t.UTC()
	year, month, day := t.Date()
	hour, minute, second := t.Clock()
	b = appendDigits(b, year, 4)
	b = append(b, '-')
	b = appendDigits(b, int(month), 2)
	b = append(b, '-')
	b = appendDigits(b, day, 2)
	b = append(b, ' ')
	b = appendDigits(b, hour, 2)
	b = append(b, ':')
	b = appendDigits(b, minute, 2)
	b = append(b, ':')
	b = appendDigits(b, second, 2)
	b = append(b, ':')
	b = appendDigits(b, t.Nanosecond()/1000, 6)
	return append(b, " Z"...)
}

func appendDigits(b []byte, n, width int) []byte {
	start := len(b)
	for range width {
		b = append(b, '0')
	}
	for i := start + width - 1; i >= start && n > 0; i-- {
		b[i] = byte('0' + n%10)
		n /= 10
	}
	return b
}

// ParseTime parses a text of [FormatTime]. It fails for any other form, and for an invalid time such as the 30th of
// February.
func ParseTime(s string) (time.Time, error) {
	if !hasForm(s) {
		return time.Time{}, fmt.Errorf("header time %.40q: want the form %q", s, timeForm)
	}
	t := time.Date(
		digits(s[0:4]), time.Month(digits(s[5:7])), digits(s[8:10]),
		digits(s[11:13]), digits(s[14:16]), digits(s[17:19]), digits(s[20:26])*1000, time.UTC)
	// time.Date carries a day 30 of February over into March; the text then differs.
	var buf [len(timeForm)]byte
	if string(AppendTime(buf[:0], t)) != s {
		return time.Time{}, fmt.Errorf("header time %q: no such time", s)
	}
	return t, nil
}

// hasForm reports whether s has digits where timeForm has digits, and equals it elsewhere.
func hasForm(s string) bool {
	if len(s) != len(timeForm) {
		return false
	}
	for i := range len(s) {
		if isDigit(timeForm[i]) != isDigit(s[i]) || !isDigit(s[i]) && s[i] != timeForm[i] {
			return false
		}
	}
	return true
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func digits(s string) (n int) {
	for i := range len(s) {
		n = n*10 + int(s[i]-'0')
	}
	return n
}

// FormatDuration returns d as the text of a .NET TimeSpan, such as "1.02:03:04.5000000": days and
// fraction only if they are not zero, in steps of 100 ns.
func FormatDuration(d time.Duration) string {
	var b []byte
	left := uint64(d)
	if d < 0 {
		b = append(b, '-')
		left = -left // -d overflows for the least Duration
	}
	part := func(unit time.Duration) int {
		n := left / uint64(unit)
		left %= uint64(unit)
		return int(n)
	}
	if days := part(24 * time.Hour); days > 0 {
		b = append(strconv.AppendInt(b, int64(days), 10), '.')
	}
	b = append(appendDigits(b, part(time.Hour), 2), ':')
	b = append(appendDigits(b, part(time.Minute), 2), ':')
	b = appendDigits(b, part(time.Second), 2)
	if ticks := part(100); ticks > 0 {
		b = appendDigits(append(b, '.'), ticks, 7)
	}
	return string(b)
}

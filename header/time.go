package header

import (
	"fmt"
	"strconv"
	"time"
)

// timeLayout is "yyyy-MM-dd HH:mm:ss:ffffff Z", UTC and fixed width: NServiceBus's
// form of a time (DateTimeOffsetHelper.cs). The colon before the fraction is why
// time.Format cannot write it.
const timeLen = len("2006-01-02 15:04:05:000000 Z")

// FormatTime is t as header text: UTC, microseconds, 28 characters for the years
// 0 to 9999, for instance "2026-01-02 03:04:05:000000 Z".
func FormatTime(t time.Time) string {
	var buf [timeLen]byte
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

// ParseTime reads what [FormatTime] wrote. It fails on any other form.
func ParseTime(s string) (time.Time, error) {
	if len(s) != timeLen || s[10] != ' ' || s[19] != ':' || s[26:] != " Z" {
		return time.Time{}, fmt.Errorf("header time %.40q: want the form %q", s, "2006-01-02 15:04:05:000000 Z")
	}
	micros := 0
	for _, c := range []byte(s[20:26]) {
		if c < '0' || c > '9' {
			return time.Time{}, fmt.Errorf("header time %q: %q is not a fraction of a second", s, s[20:26])
		}
		micros = micros*10 + int(c-'0')
	}
	t, err := time.Parse("2006-01-02 15:04:05", s[:19])
	if err != nil {
		return time.Time{}, fmt.Errorf("header time %q: %w", s, err)
	}
	return t.Add(time.Duration(micros) * time.Microsecond), nil
}

// FormatDuration is d as .NET's TimeSpan text, such as "1.02:03:04.5000000": days and
// fraction only where there are any, in steps of 100 ns.
func FormatDuration(d time.Duration) string {
	var b []byte
	if d < 0 {
		b = append(b, '-')
		d = -d
	}
	if days := d / (24 * time.Hour); days > 0 {
		b = append(strconv.AppendInt(b, int64(days), 10), '.')
	}
	b = append(appendDigits(b, int(d/time.Hour%24), 2), ':')
	b = append(appendDigits(b, int(d/time.Minute%60), 2), ':')
	b = appendDigits(b, int(d/time.Second%60), 2)
	if ticks := int(d % time.Second / 100); ticks > 0 {
		b = appendDigits(append(b, '.'), ticks, 7)
	}
	return string(b)
}

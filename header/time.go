package header

import (
	"fmt"
	"time"
)

const (
	// timeForm is a time in the form of NServiceBus, "yyyy-MM-dd HH:mm:ss:ffffff Z", UTC and fixed
	// width (DateTimeOffsetHelper.cs). timeLayout is that for package time, which knows no colon
	// before a fraction.
	timeForm   = "2006-01-02 15:04:05:000000 Z"
	timeLayout = "2006-01-02 15:04:05.000000 Z"
	timeEnd    = len(":000000 Z")
)

// FormatTime returns t as header text: UTC, microseconds, 28 characters for the years 0 to 9999,
// for instance "2026-01-02 03:04:05:000000 Z".
func FormatTime(t time.Time) string {
	text := format(t)
	return string(text[:])
}

// format is apart so that FormatTime is inlined, and ParseTime allocates nothing.
func format(t time.Time) [len(timeForm)]byte {
	t = t.UTC()
	year, month, day := t.Date()
	hour, minute, second := t.Clock()
	text, end := [len(timeForm)]byte([]byte(timeForm)), 0
	for _, n := range [...]int{year, int(month), day, hour, minute, second, t.Nanosecond() / 1000} {
		for end < len(text) && isDigit(text[end]) {
			end++
		}
		for i := end - 1; i >= 0 && isDigit(text[i]); i-- {
			text[i] = byte('0' + n%10)
			n /= 10
		}
		end++
	}
	return text
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// ParseTime parses a text of [FormatTime]. It fails for any other form, and for an invalid time
// such as the 30th of February.
func ParseTime(s string) (time.Time, error) {
	if len(s) != len(timeForm) {
		return time.Time{}, fmt.Errorf("header time %.40q: want the form %q", s, timeForm)
	}
	point := len(s) - timeEnd
	t, err := time.Parse(timeLayout, s[:point]+"."+s[point+1:])
	if err != nil || FormatTime(t) != s { // package time accepts other widths
		return time.Time{}, fmt.Errorf("header time %q: want a time in the form %q", s, timeForm)
	}
	return t, nil
}

// FormatDuration returns d as the text of a .NET TimeSpan, such as "1.02:03:04.5000000": days and
// fraction only if they are not zero, in steps of 100 ns.
func FormatDuration(d time.Duration) string {
	sign, size := "", uint64(d)
	if d < 0 {
		size = -size // -d overflows for the least Duration
	}
	if d <= -100 {
		sign = "-"
	}
	seconds, ticks := size/1e9, size%1e9/100
	text := fmt.Sprintf("%02d:%02d:%02d", seconds/3600%24, seconds/60%60, seconds%60)
	if days := seconds / (24 * 3600); days > 0 {
		text = fmt.Sprintf("%d.%s", days, text)
	}
	if ticks > 0 {
		text += fmt.Sprintf(".%07d", ticks)
	}
	return sign + text
}

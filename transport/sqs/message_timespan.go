package sqs

import (
	"strconv"
	"strings"
	"time"
)

// parseTimeSpan reads a .NET TimeSpan such as "1.02:03:04.5000000". A TimeSpan beyond a Duration,
// such as TimeSpan.MaxValue, is the longest Duration.
func parseTimeSpan(s string) (time.Duration, bool) {
	days, clock := 0, s
	if before, after, ok := strings.Cut(s, "."); ok && !strings.Contains(before, ":") {
		n, ok := number(before, 8)
		if !ok {
			return 0, false
		}
		days, clock = n, after
	}
	clock, fraction, _ := strings.Cut(clock, ".")
	parts := strings.Split(clock, ":")
	if len(parts) != 3 || len(fraction) > 9 {
		return 0, false
	}
	hours, okHours := number(parts[0], 2)
	minutes, okMinutes := number(parts[1], 2)
	seconds, okSeconds := number(parts[2], 2)
	nanos, okNanos := number((fraction + "000000000")[:9], 9)
	if !okHours || !okMinutes || !okSeconds || !okNanos || hours > 23 || minutes > 59 || seconds > 59 {
		return 0, false
	}
	const day = 24 * time.Hour
	if days >= int(longest/day) {
		return longest, true
	}
	return time.Duration(days)*day + time.Duration(hours)*time.Hour + time.Duration(minutes)*time.Minute +
		time.Duration(seconds)*time.Second + time.Duration(nanos), true
}

const longest time.Duration = 1<<63 - 1

// number reads a number of at most that many digits.
func number(s string, digits int) (int, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return int(n), err == nil && len(s) <= digits //nolint:gosec // 32 bits
}

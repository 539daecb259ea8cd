package serialization

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/header"
)

// TimeSpan is a duration with the text of .NET's TimeSpan, [-][d.]hh:mm:ss[.fffffff], in JSON and
// wherever a type's text is asked for: "00:01:30.5000000" is 90.5 s. [time.Duration] is a number of
// nanoseconds in JSON, which .NET refuses. Parts below 100 ns are cut off. The zero value is no
// time.
type TimeSpan time.Duration

// MarshalText returns the text of d.
func (d TimeSpan) MarshalText() ([]byte, error) {
	return []byte(header.FormatDuration(time.Duration(d))), nil
}

// UnmarshalText sets d to the duration of a text. The error of one that is longer than
// time.Duration says so.
func (d *TimeSpan) UnmarshalText(text []byte) error {
	rest, negative := strings.CutPrefix(string(text), "-")
	dates, clock, hasDays := strings.Cut(rest, ".")
	if !hasDays || strings.Contains(dates, ":") {
		dates, clock = "0", rest
	}
	clock, fraction, hasFraction := strings.Cut(clock, ".")
	if hasFraction {
		if fraction == "" || len(fraction) > 7 {
			return fmt.Errorf("%q is no TimeSpan: want [-][d.]hh:mm:ss[.fffffff]", text)
		}
		fraction += "0000000"[len(fraction):]
	} else {
		fraction = "0"
	}
	parts := append(strings.Split(clock, ":"), dates, fraction)
	numbers := make([]uint64, len(parts))
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, 32)
		if err != nil || len(parts) != 5 {
			return fmt.Errorf("%q is no TimeSpan: want [-][d.]hh:mm:ss[.fffffff]", text)
		}
		numbers[i] = n
	}
	hours, minutes, seconds := numbers[0], numbers[1], numbers[2]
	days, ticks := numbers[3], numbers[4]
	if hours > 23 || minutes > 59 || seconds > 59 {
		return fmt.Errorf("%q is no TimeSpan: want [-][d.]hh:mm:ss[.fffffff]", text)
	}
	ticks += (((days*24+hours)*60+minutes)*60 + seconds) * 1e7
	if days > math.MaxInt64/uint64(24*time.Hour) || ticks > math.MaxInt64/100 {
		return fmt.Errorf("%q is longer than time.Duration", text)
	}
	*d = TimeSpan(ticks * 100) //nolint:gosec // checked
	if negative {
		*d = -*d
	}
	return nil
}

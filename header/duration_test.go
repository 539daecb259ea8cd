package header

import (
	"math"
	"testing"
	"time"
)

func TestFormatDurationIsATimeSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0:                              "00:00:00",
		10 * time.Second:               "00:00:10",
		90*time.Minute + time.Second/2: "01:30:00.5000000",
		-time.Second:                   "-00:00:01",
		50*time.Hour + 3*time.Second:   "2.02:00:03",
		150 * time.Nanosecond:          "00:00:00.0000001",
		time.Duration(math.MaxInt64):   "106751.23:47:16.8547758",
		time.Duration(math.MinInt64):   "-106751.23:47:16.8547758",
	} {
		if got := FormatDuration(d); got != want {
			t.Errorf("%d ns: %q, want %q", int64(d), got, want)
		}
	}
}

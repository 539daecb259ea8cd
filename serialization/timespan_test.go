package serialization_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/serialization"
)

func TestTimeSpansAreDotNetTexts(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		`"00:00:00"`:                 0,
		`"00:01:30.5000000"`:         90*time.Second + 500*time.Millisecond,
		`"-1.02:03:04.0000001"`:      -(26*time.Hour + 3*time.Minute + 4*time.Second + 100),
		`"106751.23:47:16.8547758"`:  math.MaxInt64 / 100 * 100,
		`"-106751.23:47:16.8547758"`: -(math.MaxInt64 / 100 * 100),
	} {
		var got serialization.TimeSpan
		if err := json.Unmarshal([]byte(text), &got); err != nil || time.Duration(got) != want {
			t.Errorf("%s: %v, %v; want %v", text, time.Duration(got), err, want)
		}
		if written, err := json.Marshal(got); err != nil || string(written) != text {
			t.Errorf("%v is written as %s, %v; want %s", want, written, err, text)
		}
	}
	var short serialization.TimeSpan
	if err := short.UnmarshalText([]byte("1.00:00:00.5")); err != nil || time.Duration(short) != 24*time.Hour+500*time.Millisecond {
		t.Errorf("a short fraction: %v, %v", time.Duration(short), err)
	}
	if text, err := serialization.TimeSpan(-99).MarshalText(); err != nil || string(text) != "00:00:00" {
		t.Errorf("less than 100 ns: %s, %v", text, err)
	}
	for text, want := range map[string]string{
		"":                        "no TimeSpan",
		"1":                       "no TimeSpan",
		"00:00":                   "no TimeSpan",
		"00:00:00:00":             "no TimeSpan",
		"24:00:00":                "no TimeSpan",
		"00:60:00":                "no TimeSpan",
		"00:00:00.":               "no TimeSpan",
		"00:00:00.12345678":       "no TimeSpan",
		"00:00:00.-1":             "no TimeSpan",
		"+1.00:00:00":             "no TimeSpan",
		"--00:00:01":              "no TimeSpan",
		"106751.23:47:16.8547759": "longer than",
		"4294967295.00:00:00":     "longer than",
		"21350399.00:00:00":       "longer than", // by 2^64 ticks and some hours
	} {
		d := serialization.TimeSpan(7)
		if err := d.UnmarshalText([]byte(text)); err == nil || !strings.Contains(err.Error(), want) || d != 7 {
			t.Errorf("%q: %v, %v; want %q", text, time.Duration(d), err, want)
		}
	}
}

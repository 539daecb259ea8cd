package transport_test

import (
	"bytes"
	"log/slog"
	"math"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

func TestOperationDelay(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	tests := []struct {
		name string
		op   transport.Operation
		want time.Duration
	}{
		{"zero", transport.Operation{}, 0},
		{"After", transport.Operation{After: time.Minute}, time.Minute},
		{"After, negative", transport.Operation{After: -time.Minute}, 0},
		{"At", transport.Operation{At: now.Add(time.Hour)}, time.Hour},
		{"At, in another zone", transport.Operation{At: now.Add(time.Hour).In(time.FixedZone("", 3600))}, time.Hour},
		{"At, now", transport.Operation{At: now}, 0},
		{"At, in the past", transport.Operation{At: now.Add(-time.Hour)}, 0},
		{"At wins over After", transport.Operation{After: time.Minute, At: now.Add(time.Hour)}, time.Hour},
		{"At in the past wins over After", transport.Operation{After: time.Minute, At: now.Add(-time.Hour)}, 0},
		{"At, further than a Duration", transport.Operation{At: now.AddDate(1000, 0, 0)}, math.MaxInt64},
		{"TTL is no delay", transport.Operation{TTL: time.Minute}, 0},
	}
	for _, test := range tests {
		if got := test.op.Delay(now); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

func TestUnlimitedIsOverEveryDelay(t *testing.T) {
	longest := transport.Operation{After: math.MaxInt64}
	if longest.Delay(time.Time{}) > transport.Unlimited {
		t.Error("a delay can be over Unlimited")
	}
}

func TestEnvLogsToItsLoggerOrNowhere(t *testing.T) {
	var out bytes.Buffer
	env := transport.Env{Logger: slog.New(slog.NewTextHandler(&out, nil))}
	env.Log().Info("connected")
	if !bytes.Contains(out.Bytes(), []byte("msg=connected")) {
		t.Errorf("logged %q", out.String())
	}
	nowhere := transport.Env{}.Log()
	if nowhere.Enabled(t.Context(), slog.LevelError) {
		t.Error("an Env without a logger has one that is enabled")
	}
	nowhere.Error("lost")
}

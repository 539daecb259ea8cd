package recoverability

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestSuspectsHaveMoreDeliveriesThanAttempts(t *testing.T) {
	for _, test := range []struct {
		c    Config
		want int // the last delivery that is not suspect
	}{
		{Config{}, 6},
		{Config{Immediate: None}, 3},
		{Config{Immediate: 1}, 3},
		{Config{Immediate: 9}, 10},
		{Config{Rules: []Rule{{Immediate: 12}, {Immediate: 2}}}, 13},
		{Config{Quarantine: Quarantine{After: 1}}, 1},
		{Config{Quarantine: Quarantine{After: None}}, None},
	} {
		if got := test.c.WithDefaults().Quarantine.After; got != test.want {
			t.Errorf("%+v: suspect after delivery %d, want %d", test.c, got, test.want)
		}
	}
}

func TestAMessageIsParkedAfterSoManyCrashesInQuarantine(t *testing.T) {
	for crashes, want := range map[int]int{0: 3, 1: 1, 3: 3} {
		if got := (Config{Quarantine: Quarantine{Crashes: crashes}}).WithDefaults().Quarantine.Crashes; got != want {
			t.Errorf("Crashes %d: parked after delivery %d, want %d", crashes, got, want)
		}
	}
}

func TestTheTimeBetweenLooksAtAnEmptyQuarantine(t *testing.T) {
	for idle, valid := range map[time.Duration]bool{0: true, time.Second: false, -time.Minute: false, 5 * time.Second: true, time.Hour: true} {
		if err := (Config{Quarantine: Quarantine{Idle: idle}}).Validate(); (err == nil) != valid {
			t.Errorf("Idle %v: %v", idle, err)
		}
	}
}

func TestACrashLoopTellsWhatWasCounted(t *testing.T) {
	err := Unrecoverable(&CrashLoopError{Queue: "sales", Attempts: 7, Crashes: 3})
	var c interface{ FaultClass() string }
	if !errors.As(err, &c) || c.FaultClass() != "crash-loop" {
		t.Errorf("no class in %v", err)
	}
	for _, part := range []string{"3 times", `"sales"`, "7 deliveries"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
}

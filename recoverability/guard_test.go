package recoverability

import (
	"errors"
	"strings"
	"testing"
)

func TestSuspectsHaveMoreDeliveriesThanAttempts(t *testing.T) {
	for _, test := range []struct {
		c    Config
		want int // the first suspect delivery; 0 for none
	}{
		{Config{}, 7},
		{Config{Immediate: None}, 4},
		{Config{Immediate: 1}, 4},
		{Config{Immediate: 9}, 11},
		{Config{Rules: []Rule{{Immediate: 12}, {Immediate: 2}}}, 14},
		{Config{Quarantine: Quarantine{After: 1}}, 2},
		{Config{Quarantine: Quarantine{After: None}}, 0},
	} {
		q, got := test.c.WithDefaults().Quarantine, 0
		for n := 20; n >= 1; n-- {
			if q.Suspect(n) {
				got = n
			}
		}
		if got != test.want {
			t.Errorf("%+v: suspect from delivery %d on, want %d", test.c, got, test.want)
		}
	}
}

func TestAMessageIsParkedAfterSoManyCrashesInQuarantine(t *testing.T) {
	for crashes, want := range map[int]int{0: 4, 1: 2, 3: 4} {
		q := Config{Quarantine: Quarantine{Crashes: crashes}}.WithDefaults().Quarantine
		if q.Parked(want-1) || !q.Parked(want) {
			t.Errorf("Crashes %d: not parked by delivery %d", crashes, want)
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

package fault

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/recoverability"
)

// The history grows with each delay, and ends on the copy in the error queue.
func TestTheHistoryGrowsAndEndsOnTheErrorCopy(t *testing.T) {
	var h header.Map
	for i := range 14 {
		f := recoverability.Failure{
			Err: fmt.Errorf("no %d", i), Headers: h, Attempt: 6, Delayed: i, Now: first.Add(time.Duration(i) * time.Minute),
			Instance: "m1", History: ParseHistory(h.Get(header.HoldfastHistory)),
		}
		h = DelayHeaders(f, Headers(f, host, Frame{}), time.Minute)
	}
	f := recoverability.Failure{Err: errors.New("the last"), Headers: h, History: ParseHistory(h.Get(header.HoldfastHistory))}
	copied := ErrorHeaders(h, Headers(f, host, Frame{}))
	if v, ok := copied.Lookup(header.HoldfastHistory); ok {
		t.Errorf("the error copy still has %s %q", header.HoldfastHistory, v)
	}
	past := ParseHistory(copied.Get(header.HoldfastFaultHistory))
	var got []string
	for _, p := range past {
		got = append(got, p.Text)
	}
	want := []string{"no 0", "no 5", "no 6", "no 7", "no 8", "no 9", "no 10", "no 11", "no 12", "no 13"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatal(diff)
	}
	wantLast := recoverability.Past{Time: first.Add(13 * time.Minute), Attempt: 6, Delayed: 13, Class: "*errors.errorString", Text: "no 13", Instance: "m1"}
	if diff := cmp.Diff(wantLast, past[9]); diff != "" {
		t.Error(diff)
	}
}

func TestTheHistoryIsBoundedWhateverErrorsSay(t *testing.T) {
	for name, text := range map[string]string{
		"a megabyte": strings.Repeat("é", 1<<19), "control characters": strings.Repeat("\x01", 1<<20), "not UTF-8": strings.Repeat("\xff", 1<<20),
	} {
		var h header.Map
		for range 20 {
			f := recoverability.Failure{Err: errors.New(text), Headers: h, Now: first, History: ParseHistory(h.Get(header.HoldfastHistory))}
			h = DelayHeaders(f, Headers(f, host, Frame{}), time.Minute)
		}
		got := h.Get(header.HoldfastHistory)
		if n := len(ParseHistory(got)); len(got) > 16<<10 || n != 10 {
			t.Errorf("%s: a history of %d bytes with %d failures", name, len(got), n)
		}
	}
}

func TestAHistoryThatMakesNoSenseIsNone(t *testing.T) {
	for _, text := range []string{
		"", "null", "{}", "[1]", `[{"t":"yesterday"}]`, "[", `[{"n":"1"}]`, "\x00",
		"[" + strings.Repeat(`{"c":"x"},`, 5000) + `{"c":"x"}]`,
	} {
		if got := ParseHistory(text); len(got) != 0 {
			t.Errorf("%.20q: %v", text, got)
		}
	}
	if got := ParseHistory("[" + strings.Repeat(`{"c":"x"},`, 50) + `{"c":"last"}]`); len(got) != 10 || got[9].Class != "last" {
		t.Errorf("a long one: %v", got)
	}
}

func TestHistoryHasTheTextsOfTheFaultHeaders(t *testing.T) {
	f := recoverability.Failure{Err: errors.New("password is hunter2"), Now: first}
	fault := Headers(f, host, Frame{})
	fault.Set(header.ExceptionMessage, "[left out]")
	if text := DelayHeaders(f, fault, time.Minute).Get(header.HoldfastHistory); strings.Contains(text, "hunter2") || !strings.Contains(text, "[left out]") {
		t.Errorf("history %s", text)
	}
}

// A trimmed fault is short, and a minimal fault is enough to return the message.
func TestATrimmedFaultIsShort(t *testing.T) {
	f := recoverability.Failure{
		Err: errors.New(strings.Repeat("日", 1<<18)), Queue: "billing", Now: first, FirstFailure: first,
		History: []recoverability.Past{{Text: "before"}},
	}
	fault := Headers(f, host, Frame{})
	fault.Set("My.Own", strings.Repeat("x", 1<<20))
	trimmed := Trim(fault)
	for name, value := range trimmed.All() {
		if len(value) > 512 {
			t.Errorf("%s has %d bytes", name, len(value))
		}
	}
	if trimmed.Len() != fault.Len()-1 || trimmed.Get(header.FailedQ) != "billing" || trimmed.Get(header.HoldfastFaultHistory) != "" {
		t.Errorf("trimmed to %d of %d headers: %v", trimmed.Len(), fault.Len(), fields(trimmed))
	}
	want := map[string]string{
		header.FailedQ: "billing", header.TimeOfFailure: header.FormatTime(first), header.HoldfastFaultClass: "*errors.errorString",
		header.ProcessingEndpoint: "billing",
	}
	if diff := cmp.Diff(want, fields(Minimal(fault))); diff != "" {
		t.Error(diff)
	}
	want[header.ExceptionType] = "*errors.errorString"
	fault.Set(header.HostDisplayName, strings.Repeat("m", 100))
	if diff := cmp.Diff(want, fields(Short(fault))); diff != "" {
		t.Error("with a host whose name is long:", diff)
	}
	want[header.HostID], want[header.HostDisplayName] = host.HostID, host.DisplayName
	fault.Set(header.HostDisplayName, host.DisplayName)
	if diff := cmp.Diff(want, fields(Short(fault))); diff != "" {
		t.Error(diff)
	}
	if n := Minimal(header.Map{}).Len() + Short(header.Map{}).Len(); n != 0 {
		t.Errorf("nothing has %d headers left", n)
	}
}

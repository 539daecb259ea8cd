package fault

import (
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/recoverability"
)

func TestAReturnedMessageHasTheHeadersThatItCameWith(t *testing.T) {
	sent := header.New(
		header.Field{Name: header.MessageID, Value: "m-1"},
		header.Field{Name: header.EnclosedMessageTypes, Value: "Shop.PlaceOrder"},
		header.Field{Name: "Tenant", Value: "a"},
	)
	received := sent.Clone()
	received.Set(header.Retries, "3")
	received.Set(header.RetriesTimestamp, "2026-01-02 03:04:05:000000 Z")
	received.Set(header.HoldfastFirstFailure, "2026-01-02 03:04:05:000000 Z")
	fault := Headers(recoverability.Failure{
		Err: errors.New("no"), Queue: "sales", Now: time.Now(), Attempt: 6, Headers: received,
	}, Host{}, Frame{})
	fault.Set("Holdfast.Quarantine.Attempts", "4")
	fault.Set("NServiceBus.Retries.Timestamp", "stale") // of an NServiceBus that leaves it there
	failed := ErrorHeaders(received, fault)
	failed.Set(header.RetriesTimestamp, "stale")

	got := maps.Collect(ReturnHeaders(failed).All())
	for name := range maps.Collect(fault.All()) { // who handled it last may stay
		if name == header.ProcessingEndpoint || name == header.ProcessingMachine ||
			name == header.HostID || name == header.HostDisplayName {
			delete(got, name)
		}
	}
	want := maps.Collect(sent.All())
	want[header.HoldfastReturns] = "1"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
}

func TestReturnsAreCounted(t *testing.T) {
	for said, want := range map[string]string{"": "1", "1": "2", "41": "42", "-3": "1", "many": "1", "99999999999999": "1"} {
		h := header.New(header.Field{Name: header.HoldfastReturns, Value: said})
		if got := ReturnHeaders(h).Get(header.HoldfastReturns); got != want {
			t.Errorf("after %q: %q, want %q", said, got, want)
		}
	}
}

// A returned copy is readable, and may fail again for lack of the headers that were not.
func TestUndecodableHeadersStayOnAReturnedMessage(t *testing.T) {
	received := header.New(header.Field{Name: header.UndecodableHeaders, Value: "{"})
	for range 2 {
		fault := Headers(recoverability.Failure{
			Err: errors.New("no type"), Queue: "sales", Now: time.Now(), Attempt: 1, Headers: received,
		}, Host{}, Frame{})
		received = ReturnHeaders(ErrorHeaders(received, fault))
		if got := received.Get(header.UndecodableHeaders); got != "{" {
			t.Errorf("returned with %q in place of the headers", got)
		}
	}
}

// A copy that waits outside of the error queue arrives there with the same headers, and a return
// has none of them.
func TestDecidedHeadersAreThoseOfTheErrorQueue(t *testing.T) {
	received := header.New(
		header.Field{Name: header.MessageID, Value: "m-1"},
		header.Field{Name: "Tenant", Value: "a"},
		header.Field{Name: header.RetryUniqueID, Value: "u-1"},
		header.Field{Name: header.Retries, Value: "3"},
	)
	fault := Headers(recoverability.Failure{
		Err: errors.New("no"), Queue: "sales", Now: time.Now(), Attempt: 6, Headers: received,
	}, Host{Endpoint: "Sales", Machine: "m", HostID: "h", DisplayName: "d"}, Frame{})
	fault.Set("Team", "payments") // by Recoverability.FaultHeaders
	failed := ErrorHeaders(received, fault)
	waits := DecidedHeaders(failed, "error-2")
	if got := waits.Get(header.HoldfastFaultDecided); got != "error-2" {
		t.Errorf("the copy is for %q", got)
	}
	own, left := LeaveDecided(waits)
	if diff := cmp.Diff(maps.Collect(failed.All()), maps.Collect(ErrorHeaders(own, left).All())); diff != "" {
		t.Errorf("headers in the error queue (-want +got):\n%s", diff)
	}
	for name := range own.All() {
		if name != header.MessageID && name != "Tenant" && name != header.RetryUniqueID && name != "Team" {
			t.Errorf("%s is a received header", name)
		}
	}
	returned := ReturnHeaders(waits)
	byControl := ReturnedHeaders(waits)
	for _, h := range []header.Map{returned, ErrorHeaders(waits, header.Map{}), byControl} {
		if value, ok := h.Lookup(header.HoldfastFaultDecided); ok {
			t.Errorf("the header stays: %q", value)
		}
	}
}

package fault

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/resilience"
)

func names(h header.Map) (names []string) {
	for name := range h.All() {
		names = append(names, name)
	}
	return names
}

// The policy that a sender names belongs to the message; the state of its retries does not outlast
// them.
func TestTheStateOfRetriesByAPolicyEndsWithThem(t *testing.T) {
	received := headers(header.HoldfastPolicy, "mail", header.HoldfastRetryPolicy, "mail", header.HoldfastRetryAttempt, "3", header.HoldfastRetryLastError, "no")
	for name, got := range map[string]header.Map{
		"error": ErrorHeaders(received, header.Map{}), "forward": ForwardHeaders(received), "return": ReturnHeaders(received),
	} {
		got.Del(header.HoldfastReturns)
		if diff := cmp.Diff([]string{header.HoldfastPolicy}, names(got)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestADelayedCopyNamesThePolicyThatDecided(t *testing.T) {
	mail := resilience.Policy{Name: "mail", Retry: resilience.Retry{Max: 3}}
	deferred := recoverability.Config{Rules: []recoverability.Rule{{Retry: resilience.Deferred(mail)}}}
	f := recoverability.Failure{
		Err: errors.New("no"), Now: time.Now(), Attempt: 1, Delayed: 1, Config: deferred,
		Headers: headers(header.HoldfastRetryPolicy, strings.Repeat("x", 1<<20), header.HoldfastRetryAttempt, "-1", header.HoldfastRetryLastError, "old"),
	}
	text := strings.Repeat("é", 20<<10)
	f.Err = errors.New(text)
	h := DelayHeaders(f, Headers(f, Host{}, Frame{}), time.Second)
	for name, want := range map[string]string{
		header.HoldfastRetryPolicy: "mail", header.HoldfastRetryAttempt: "3", header.HoldfastRetryLastError: text[:maxText], header.Retries: "2",
	} {
		if got := h.Get(name); got != want {
			t.Errorf("%s is %.50q of %d bytes, want %.50q", name, got, len(got), want)
		}
	}
	f.Config = recoverability.Config{}
	h = DelayHeaders(f, Headers(f, Host{}, Frame{}), time.Second)
	for _, name := range retryHeaders {
		if value, ok := h.Lookup(name); ok {
			t.Errorf("without a policy %s is %.50q", name, value)
		}
	}
}

package schedule

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
)

// A long queue does not get longer by probes.
func TestAProcessSendsOneProbeAtATime(t *testing.T) {
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	of, p, sent := &Schedule{Name: "reports", Every: time.Hour}, &plan{Current: "a", Began: began}, probes{}
	want := func(after time.Duration, job string) {
		t.Helper()
		if got := sent.next(of, p, began.Add(after)); got != job {
			t.Errorf("after %v: a probe for %q, want %q", after, got, job)
		}
	}
	want(9*time.Minute, "")
	want(10*time.Minute, "a")
	want(15*time.Minute, "") // the first is not handled
	want(69*time.Minute, "")
	want(70*time.Minute, "a") // the first may be lost
	p.Probe = probe{Job: "a", Seen: began.Add(60 * time.Minute)}
	want(75*time.Minute, "")
	p.Probe.Seen = began.Add(75 * time.Minute)
	want(80*time.Minute, "a")
	p.Current = "b"
	want(85*time.Minute, "b")
	p.Probe.Seen = began.Add(90 * time.Minute) // that of job a
	want(90*time.Minute, "")

	of.Overlap = AllowOverlap
	want(5*time.Hour, "")
	of.Every, of.After = 0, time.Hour // the next time counts from the end of the run
	want(6*time.Hour, "b")
	p.Current = ""
	want(9*time.Hour, "")
}

func TestAMessageMayWaitOutsideOfItsQueue(t *testing.T) {
	calm := endpoint.Health{Endpoint: "billing", Ready: true}
	outbox := func(o endpoint.OutboxHealth) endpoint.Health {
		h := calm
		h.Outbox = &o
		return h
	}
	notReady, quarantined, uncounted := calm, calm, calm
	notReady.Ready, quarantined.Quarantined, uncounted.Quarantined = false, 1, -1
	for name, test := range map[string]struct {
		h    endpoint.Health
		want bool
	}{
		"calm":                 {calm, true},
		"not ready":            {notReady, false},
		"quarantined":          {quarantined, false},
		"quarantine uncounted": {uncounted, false},
		"outbox":               {outbox(endpoint.OutboxHealth{Ready: 5}), true},
		"outbox unknown":       {outbox(endpoint.OutboxHealth{Ready: -1}), false},
		"old rows":             {outbox(endpoint.OutboxHealth{Ready: 1, Oldest: time.Minute}), false},
		"own queue waits":      {outbox(endpoint.OutboxHealth{Waiting: []endpoint.DestinationHealth{{Destination: "billing"}}}), false},
		"other queue waits":    {outbox(endpoint.OutboxHealth{Waiting: []endpoint.DestinationHealth{{Destination: "sales"}}}), true},
	} {
		if got := isCalm(test.h); got != test.want {
			t.Errorf("%s: calm %v, want %v", name, got, test.want)
		}
	}
}
